"""Clocks step, or differ, under load: nothing is lost, and what expires by a wrong clock is answered as late."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.row_stack import RowStack
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent, Maker, Planned, question
from tests.support.kafka_client import Sent
from tests.support.scrape import Metrics, metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

# The build for many threads: with the other one, a change of the file now and then ends a process that has several.
_LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
_VALID_S = 120.0

needs_faketime = pytest.mark.skipif(_LIBRARY is None, reason="no libfaketime: install Debian's package of that name")


LATE = frozenset({"DEADLINE_EXCEEDED"})
GOOD = frozenset({"OK"})


def expiring(number: int, request_id: str, clock_s: float = 0.0, codes: frozenset[str] = GOOD) -> Planned:
    """A question that expires in two minutes, by a producer whose clock is so much ahead."""
    planned = question(number, request_id)
    message = pb.EmbedRequest.FromString(planned.sent.value or b"")
    message.expire_time.FromNanoseconds(int((time.time() + clock_s + _VALID_S) * 1e9))
    return Planned(Sent(message.SerializeToString()), Intent(planned.intent.text, codes, clock_s=clock_s))


def put(clock: Path, ahead_s: int) -> None:
    """Set a faked clock; at once, as it may be read at any moment."""
    new = clock.with_suffix(".new")
    new.write_text(f"{ahead_s:+d}")
    new.replace(clock)


async def step(stack: RowStack, figures: Figures, make: Maker, step_s: int) -> Metrics:
    """Under load, put the aggregator's clock forward or back by so much for a while; its metrics at the end of that."""
    clock = stack.folder / "clock"
    put(clock, 0)
    faked = {
        "LD_PRELOAD": str(_LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    await stack.server(SYNTHETIC__FIXED_S="0.05")
    aggregator = await stack.aggregator(environment=faked)
    async with stack.fault_under_load(400, make, then=1000):
        put(clock, step_s)
        await asyncio.sleep(10.0)  # the fault itself
        found = metrics(aggregator.metrics_address)
        put(clock, 0)
    ahead = found.value("tokenbatch_consumer_ahead_total")
    await stack.passes(figures, ahead=int(ahead))
    assert bool(ahead) == (step_s < 0)
    return found


@pytest.mark.privileged
@needs_faketime
@pytest.mark.row("the aggregator's clock steps, requests without expiry")
@pytest.mark.parametrize("step_s", [300, -300])
async def test_a_step_of_the_clock_harms_nothing(stack: RowStack, figures: Figures, step_s: int) -> None:
    await step(stack, figures, question, step_s)


@pytest.mark.privileged
@needs_faketime
@pytest.mark.row("the aggregator's clock steps by 2 h, which brokers refuse, requests without expiry")
async def test_a_clock_that_brokers_refuse_makes_no_dead_letter(stack: RowStack, figures: Figures) -> None:
    for topic in (stack.topics.replies, f"{stack.topics.requests}-dlt"):
        await stack.configure(topic, message_timestamp_type="CreateTime", message_timestamp_after_max_ms="3600000")
    found = await step(stack, figures, question, 7200)
    assert found.value("tokenbatch_producer_untimely_total") > 0


@pytest.mark.privileged
@needs_faketime
@pytest.mark.row("the aggregator's clock steps, requests that expire in 2 min")
@pytest.mark.parametrize("step_s", [pytest.param(300, marks=pytest.mark.short), -300])
async def test_a_step_ahead_expires_in_words_and_one_back_nothing(
    stack: RowStack, figures: Figures, step_s: int
) -> None:
    codes = GOOD | LATE if step_s > _VALID_S else GOOD
    await step(stack, figures, lambda number, request_id: expiring(number, request_id, codes=codes), step_s)


@pytest.mark.row(
    "every second record by a producer whose clock is 5 min off the broker's, requests that expire in 2 min"
)
@pytest.mark.parametrize("clock_s", [300, -300])
async def test_a_producer_behind_is_told_and_one_ahead_is_served(
    stack: RowStack, figures: Figures, clock_s: int
) -> None:
    def make(number: int, request_id: str) -> Planned:
        if number % 2:
            return expiring(number, request_id, float(clock_s), GOOD if clock_s > 0 else LATE)
        return expiring(number, request_id)

    await stack.configure(stack.topics.requests, message_timestamp_type="CreateTime")
    await stack.server()
    aggregator = await stack.aggregator()
    async with stack.under_load(300):
        pass
    async with stack.fault(), stack.under_load(300, make):
        await stack.answers(3000)
        ahead = metrics(aggregator.metrics_address).value("tokenbatch_consumer_ahead_total")
    await stack.passes(figures, ahead=int(ahead))
    assert bool(ahead) == (clock_s > 0)
