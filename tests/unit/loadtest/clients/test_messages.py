"""Requests and replies in each format of the wire contract."""

import json
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from google.protobuf import json_format

from loadtest.clients.messages import Format, UnreadableReply, Wishes, answers, record, reply
from protos.embedding.v1 import embedding_pb2 as pb

ALL = Wishes(model="minilm", priority="interactive", expire_s=30)


def test_a_protobuf_request_carries_every_wish() -> None:
    before_s = time.time()
    value, headers = record("who?", "run-7", Format.PROTOBUF, ALL)
    message = pb.EmbedRequest.FromString(value)
    assert headers == [("content-type", b"application/x-protobuf")]
    assert (message.request_id, message.model, message.inputs[0].text) == ("run-7", "minilm", "who?")
    assert message.priority == pb.PRIORITY_INTERACTIVE
    assert before_s - 0.001 <= message.expire_time.ToDatetime(UTC).timestamp() - 30 <= time.time()


def test_a_json_request_is_the_same_message_as_proto3_json() -> None:
    value, headers = record("who?", "run-7", Format.JSON, Wishes())
    assert headers == [("content-type", b"application/json")]
    assert json.loads(value) == {"requestId": "run-7", "inputs": [{"text": "who?"}]}


def test_a_text_request_is_the_text_and_expires_by_its_header() -> None:
    before_s = time.time()
    value, headers = record("wer wärs?", "run-7", Format.TEXT, Wishes(expire_s=30))
    assert value == "wer wärs?".encode()
    assert headers[0] == ("content-type", b"text/plain")
    name, expiry = headers[1]
    assert name == "ce_expirytime"
    assert before_s - 0.001 <= datetime.fromisoformat(expiry.decode()).timestamp() - 30 <= time.time()


@pytest.mark.parametrize("content_type", [b"application/x-protobuf", b"application/json"])
def test_a_reply_gives_the_same_vector_in_either_format(content_type: bytes) -> None:
    response = pb.EmbedResponse(request_id="run-7")
    response.embeddings.add(
        embedding=np.array([1, -2], "<f4").tobytes(), dimensions=2, encoding=pb.ENCODING_FLOAT32, token_count=4
    )
    is_json = content_type.endswith(b"json")
    value = json_format.MessageToJson(response).encode() if is_json else response.SerializeToString()

    (answer,) = answers(reply(value, content_type))
    assert answer.embedding is not None
    assert (answer.code, answer.embedding.tolist(), answer.token_count) == (0, [1, -2], 4)


def test_a_request_refused_as_a_whole_has_one_answer() -> None:
    (answer,) = answers(pb.EmbedResponse(status=pb.Status(code=5)))
    assert (answer.code, answer.embedding) == (5, None)


@pytest.mark.parametrize(
    ("value", "content_type"), [(b"\xff", b"application/x-protobuf"), (b"{", b"application/json"), (b"", b"text/html")]
)
def test_a_reply_that_does_not_parse_is_told_apart(value: bytes, content_type: bytes) -> None:
    with pytest.raises(UnreadableReply):
        reply(value, content_type)
