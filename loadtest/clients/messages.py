"""Write requests and read replies in each format of the wire contract."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from loadtest.tally import Answer
from protos.embedding.v1 import embedding_pb2 as pb

Header = tuple[str, bytes]

PRIORITIES = {
    "interactive": pb.PRIORITY_INTERACTIVE,
    "default": pb.PRIORITY_DEFAULT,
    "background": pb.PRIORITY_BACKGROUND,
}


class Format(StrEnum):
    """How a request's value is written; the reply to TEXT comes as JSON."""

    PROTOBUF = "protobuf"
    JSON = "json"
    TEXT = "text"


_CONTENT_TYPES = {
    Format.PROTOBUF: b"application/x-protobuf",
    Format.JSON: b"application/json",
    Format.TEXT: b"text/plain",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of every request of a run; an empty field leaves it to the topic or the listener.

    A request expires `expire_s` seconds after it was written.
    """

    model: str = ""
    priority: str = ""
    expire_s: float | None = None


NO_WISHES = Wishes()


class UnreadableReply(Exception):
    """A reply that is not what its content type says."""


def request(texts: list[str], request_id: str, wishes: Wishes) -> pb.EmbedRequest:
    """One request with an input for each text."""
    message = pb.EmbedRequest(
        request_id=request_id,
        model=wishes.model,
        priority=PRIORITIES.get(wishes.priority, pb.PRIORITY_UNSPECIFIED),
        inputs=[pb.Input(text=text) for text in texts],
    )
    if wishes.expire_s is not None:
        message.expire_time.FromNanoseconds(int((time.time() + wishes.expire_s) * 1e9))
    return message


def record(text: str, request_id: str, style: Format, wishes: Wishes) -> tuple[bytes, list[Header]]:
    """The value and the headers that say what it is."""
    headers = [("content-type", _CONTENT_TYPES[style])]
    if style is Format.TEXT:
        if wishes.expire_s is not None:
            expiry = datetime.fromtimestamp(time.time() + wishes.expire_s, UTC)
            headers.append(("ce_expirytime", expiry.isoformat().encode()))
        return text.encode(), headers
    message = request([text], request_id, wishes)
    if style is Format.JSON:
        return json_format.MessageToJson(message, indent=None).encode(), headers
    return message.SerializeToString(), headers


def reply(value: bytes, content_type: bytes) -> pb.EmbedResponse:
    """The reply in a record's value. Raises UnreadableReply."""
    try:
        if content_type == _CONTENT_TYPES[Format.JSON]:
            return json_format.Parse(value, pb.EmbedResponse())
        if content_type == _CONTENT_TYPES[Format.PROTOBUF]:
            return pb.EmbedResponse.FromString(value)
    except (DecodeError, json_format.ParseError) as error:
        raise UnreadableReply(f"a reply of type {content_type!r} does not parse: {error}") from error
    raise UnreadableReply(f"a reply has the content type {content_type!r}")


def answers(response: pb.EmbedResponse) -> list[Answer]:
    """One for each input; a request refused as a whole has one for all."""
    if not response.embeddings:
        return [Answer(response.status.code)]
    return [
        Answer(
            each.status.code,
            np.frombuffer(each.embedding, "<f4") if each.encoding == pb.ENCODING_FLOAT32 else None,
            each.token_count,
        )
        for each in response.embeddings
    ]
