"""Requests for scores: bounded before they are parsed, refused by name, and the same in JSON."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from aggregator.errors import Code, InvalidRequest, RequestError, Undecodable
from aggregator.request.request import MAX_INPUTS, Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.wire import values
from aggregator.sources.wire.message import parse
from aggregator.wings.ranking import wire as scores
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.scoring import Scoring
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb
from tests.support.fake_source import FakeSource

DEFAULTS = Defaults(FakeSource("kafka", refusable=False), "m", Priority.DEFAULT)


def parsed(message: pb.RankRequest | pb.ScoreRequest) -> Request:
    return parse(RANKING, message, DEFAULTS, object(), received_s=10.0, wall_s=1000.0)


def ranked(**fields: Any) -> Request:
    return parsed(pb.RankRequest(**{"query": "q", "documents": ["a", "b"], **fields}))


def test_each_document_is_an_input_with_the_query_before_it() -> None:
    request = ranked(top_n=1, return_documents=True, priority=embedding.PRIORITY_BACKGROUND, truncate_to=7)
    assert (request.task, request.inputs, request.outcomes) == (Task.SCORE, ["a", "b"], [None, None])
    assert request.details == Scoring(["q", "q"], True, 1, True)
    assert (request.priority, request.options.truncate_to, request.options.normalize) == (Priority.BACKGROUND, 7, False)
    assert request.characters == 4


def test_a_pair_has_two_texts_and_a_text_can_be_alone() -> None:
    request = parsed(pb.ScoreRequest(pairs=[pb.Pair(text="a", second_text="b"), pb.Pair(text="c")]))
    assert (request.inputs, request.details) == (["b", "c"], Scoring(["a", None]))


def test_an_empty_text_fails_by_itself() -> None:
    request = ranked(documents=["a", ""])
    assert (request.remaining, request.code) == (1, Code.INVALID_ARGUMENT)
    pairs = [pb.Pair(text="", second_text="b"), pb.Pair(text="a", second_text=""), pb.Pair(), pb.Pair(text="a")]
    assert [isinstance(found, Failure) for found in parsed(pb.ScoreRequest(pairs=pairs)).outcomes] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (pb.RankRequest(documents=["a"]), "the query is empty"),
        (pb.RankRequest(query="q"), "0 documents: at least one is needed"),
        (pb.RankRequest(query="q", documents=["a"] * 2049), "2049 documents: at most 2048 are taken"),
        (pb.ScoreRequest(), "0 pairs: at least one is needed"),
        (pb.ScoreRequest(pairs=[pb.Pair(text="a")] * 2049), "2049 pairs: at most 2048 are taken"),
        (pb.RankRequest(query="q", documents=["a"], truncate=9), "truncate 9 is not known"),  # type: ignore[arg-type]
        (pb.RankRequest(query="q", documents=["a"], priority=9), "priority 9 is not known"),  # type: ignore[arg-type]
    ],
)
def test_a_request_that_is_wrong_as_a_whole_is_refused(message: pb.RankRequest | pb.ScoreRequest, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(message)
    assert told in str(refused.value)


def test_the_earlier_deadline_counts_and_a_trusted_sender_names_a_tenant() -> None:
    message = pb.RankRequest(query="q", documents=["a"], tenant="t")
    message.expire_time.seconds = 1005
    request = parse(RANKING, message, DEFAULTS, object(), received_s=10.0, wall_s=1000.0, deadline_s=inf)
    assert (request.deadline_s, request.tenant) == (15.0, "t")


def test_too_many_fields_are_not_parsed() -> None:
    with pytest.raises(InvalidRequest, match="more than 4160 fields"):
        scores.decode_rank(pb.RankRequest(query="q" * 40_000, documents=[""] * 5000).SerializeToString())
    full = pb.RankRequest(query="q", documents=["d" * 1000] * MAX_INPUTS)
    assert scores.decode_rank(full.SerializeToString()) == full


@pytest.mark.parametrize("decode", [scores.decode_rank, scores.decode_score])
def test_bytes_that_are_no_message_are_refused_by_its_name(decode: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"decoded as ranking\.v1\."):
        decode(b"\xff" * 20)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"{", "not JSON in UTF-8"),
        (b"[]", "not a JSON object"),
        (b'{"query": "q", "secret": 1}', "no field like number 2"),
        (b'{"query": "q", "documents": [7]}', "the value of documents is invalid"),
        (b'{"documents": [' + b'"",' * 20_000 + b'""]}', "at most 2048 inputs"),
    ],
)
def test_json_that_is_no_request_is_refused_without_quoting_it(value: bytes, told: str) -> None:
    with pytest.raises(RequestError) as refused:
        scores.decode_rank_json(value)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_request_is_the_same_in_json() -> None:
    message = pb.RankRequest(query="q", documents=["a", "b"], top_n=1, return_documents=True, request_id="r")
    assert scores.decode_rank_json(json.dumps(MessageToDict(message)).encode()) == message


def test_a_text_alone_is_no_request_of_a_topic_that_ranks() -> None:
    with pytest.raises(InvalidRequest, match="send a RankRequest"):
        values.message_of(b"text", b"text/plain", 100, 10, kind=RANKING)
    with pytest.raises(Undecodable, match="not a RankRequest in protobuf"):
        values.message_of(b"\xff\xff", values.PROTOBUF, 100, 10, kind=RANKING)


def test_a_failure_is_a_response_of_its_task() -> None:
    failure = Failure(Code.INVALID_ARGUMENT, "wrong")
    value = values.encode_failure("r", failure, "reply", kind=RANKING, as_json=False)
    answer = pb.RankResponse.FromString(value)
    assert (answer.request_id, answer.reply_id, answer.status.message) == ("r", "reply", "wrong")
