"""Requests that are corrupt, huge, late or misrouted get an error or become dead letters, and harm no other."""

from __future__ import annotations

import time

import pytest
import pytest_asyncio

from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.row_stack import RowStack
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent, Planned, question
from tests.support.kafka_client import PROTOBUF, Sent, query

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

ROOMY = 8 * 1024 * 1024
HUGE = "x" * 5_000_000


def expected(code: str, *, dead: bool = False) -> Intent:
    return Intent(codes=frozenset({code}), dead=dead)


def some_corrupt(number: int, request_id: str) -> Planned:
    if number % 11:
        return question(number, request_id)
    return Planned(Sent(b"\xff\xff"), expected("DATA_LOSS", dead=True))


def bad(number: int, request_id: str) -> Planned:
    """One record in ten that cannot be served, each for another reason in turn."""
    if number % 10:
        return question(number, request_id)
    late = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text="late")])
    late.expire_time.FromNanoseconds(int((time.time() - 60) * 1e9))
    astray = query("to nobody", request_id)
    kinds = (
        Planned(query("word " * 300, request_id), expected("OUT_OF_RANGE")),
        Planned(query("", request_id), expected("INVALID_ARGUMENT")),
        Planned(query("whose?", request_id, model="unknown"), expected("NOT_FOUND")),
        Planned(Sent(late.SerializeToString()), expected("DEADLINE_EXCEEDED")),
        Planned(
            Sent(astray.value, (PROTOBUF, ("kafka_replyTopic", b"somebody.else"))),
            expected("PERMISSION_DENIED", dead=True),
        ),
    )
    return kinds[number // 10 % len(kinds)]


def huge(number: int, request_id: str) -> Planned:
    del number
    return Planned(query(HUGE, request_id), expected("INVALID_ARGUMENT", dead=True))


@pytest_asyncio.fixture(autouse=True)
async def served(stack: RowStack) -> None:
    """Two aggregators, and time enough for them."""
    await stack.server(SYNTHETIC__FIXED_S="0.002")
    for _ in range(2):
        await stack.aggregator(settings={"BATCHING__TOKEN_BUDGET": "1000"})


@pytest.mark.row("one record in eleven corrupt")
@pytest.mark.parametrize("count", [8_800, 110_000])
async def test_corrupt_payloads_are_each_dead_lettered_once(stack: RowStack, figures: Figures, count: int) -> None:
    async with stack.fault():
        await stack.load.send(count, some_corrupt)
    verdict = await stack.passes(figures, 400.0)
    assert (verdict.sent, verdict.dead_lettered, verdict.duplicates) == (count, count // 11, 0)


@pytest.mark.row("one record in ten too long, empty, for an unknown model, expired or misrouted; some of 5 MB")
async def test_bad_requests_are_told_why(stack: RowStack, figures: Figures) -> None:
    await stack.configure(stack.topics.requests, max_message_bytes=str(ROOMY))
    await stack.configure(stack.topics.dead_letters, max_message_bytes=str(ROOMY))
    async with stack.under_load(300, bad), stack.fault():
        await stack.load.send(3, huge)
        await stack.answers(3000)
    verdict = await stack.passes(figures)
    assert verdict.duplicates == 0
    assert verdict.dead_lettered >= 50
