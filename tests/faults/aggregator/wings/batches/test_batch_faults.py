"""Processes are killed while a batch is computed: each of its lines is answered exactly once."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from openai.types import Batch

from tests.faults.row_stack import RowStack
from tests.faults.rows import Figures
from tests.integration.aggregator.wings.batches.conftest import Office, client_of, lines

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]


@pytest.mark.row("aggregators and model servers killed (SIGKILL) in turn while a batch is computed")
@pytest.mark.parametrize("count", [pytest.param(4_000, marks=pytest.mark.short), 20_000])
async def test_killed_parts_answer_each_line_of_a_batch_once(stack: RowStack, figures: Figures, count: int) -> None:
    for _ in range(2):
        await stack.server(SYNTHETIC__PER_TOKEN_S="0.0001")
    told = {
        "BATCHES__STORE": f"file://{stack.folder}/store",
        "BATCHES__TOPIC": f"{stack.topics.requests}.chunks",
        "KAFKA__CREATE_TOPICS": "true",
    }
    for _ in range(2):
        await stack.aggregator(settings=told)
    office = Office(client_of(stack.aggregators[0].http_address))
    batch = await asyncio.to_thread(office.begin, lines(count))
    stack.line.fault_ms = time.time() * 1000
    kills = 0
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        await asyncio.to_thread(office.until, batch, partial(has, share * count))
        victim = (stack.aggregators[1], *stack.servers)[kills % 3]
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
        kills += 1
    stack.line.healed_ms = time.time() * 1000
    output, errors = office.answered(await asyncio.to_thread(office.ended, batch, 300.0))
    figures.counts |= {"sent": count, "answered": len(output), "duplicates": len(output) - len(set(output))}
    figures.more["kills"] = kills
    assert (output, errors) == ([f"line-{each}" for each in range(count)], [])


def has(lines: float, batch: Batch) -> bool:
    """Whether so many lines have their answer."""
    assert batch.request_counts is not None
    return batch.request_counts.completed >= lines
