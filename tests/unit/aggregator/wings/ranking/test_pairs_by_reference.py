"""A text that many pairs share is there once, from the body to the tokens, however the model joins them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pytest

from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.wire.message import parse
from aggregator.wings.ranking.http import read_score
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.scoring import scoring_of
from aggregator.wings.ranking.sequences import JoinedTexts
from aggregator.wings.ranking.wire import ScoresRequest
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb
from tests.support.fake_source import GRPC

MB = 1_000_000
QUERY = "x" * MB
DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)


def request_of(message: ScoresRequest) -> Request:
    return parse(RANKING, message, DEFAULTS, None, received_s=0.0, wall_s=0.0)


@contextmanager
def growing_at_most(size_bytes: int) -> Generator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size_bytes
    finally:
        tracemalloc.stop()


def test_one_text_scored_with_a_thousand_is_not_copied_for_each() -> None:
    body = msgspec.json.encode({"text_1": QUERY, "text_2": ["a"] * 1000})
    with growing_at_most(5 * MB):
        message, _ = read_score(body, DEFAULTS, "")
        request = request_of(message)
    assert (len(request.inputs), len({id(first) for first in scoring_of(request).firsts})) == (1000, 1)


@pytest.mark.parametrize(
    ("message", "least"),
    [
        (pb.RankRequest(query=QUERY, documents=["a", "b"]), MB),
        (pb.ScoreRequest(pairs=[pb.Pair(text="a" * MB, second_text="b")]), MB),
    ],
    ids=["query", "pair"],
)
def test_every_text_of_a_request_counts_wherever_it_is(message: ScoresRequest, least: int) -> None:
    assert least <= request_of(message).text_bytes < least + 1000


def test_pairs_are_joined_one_at_a_time() -> None:
    ends = {QUERY: (QUERY, " end"), "q": ("q: ", " end")}
    joined = JoinedTexts(ends, [QUERY] * 1000 + ["q"], ["document"] * 1001, range(1001), 2 * MB, 0)
    with growing_at_most(4 * MB):
        lengths = [len(text) for text in joined]
    assert lengths == [MB, 4, 3, 4, *[MB + 12] * 1000, 15]
    assert len(joined) == len(lengths)


@pytest.mark.parametrize(
    ("truncate", "joined"),
    [
        (embedding.TRUNCATE_NONE, "q:abcdef."),
        (embedding.TRUNCATE_END, "q:abc."),
        (embedding.TRUNCATE_START, "q:def."),
    ],
)
def test_of_a_pair_that_is_too_long_the_second_text_is_cut(truncate: int, joined: str) -> None:
    [_, _, text] = JoinedTexts({"q": ("q:", ".")}, ["q"], ["abcdef"], [0], 6, truncate)
    assert text == joined
