"""Batches of several sizes go through the real service, and what they cost besides their steps is seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from modelserver.engines.synthetic import SyntheticEngine
from modelserver.loop import EngineLoop, EngineState
from modelserver.model_files import ModelFiles
from modelserver.scheduler.embedding_steps import EmbeddingSteps
from modelserver.scheduler.queued_batch import MergeLimits
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.description import Description, describe
from modelserver.watch import PhaseWatchdog
from modelserver.wings.profile.measure import ProfileOwner, known
from modelserver.wings.profile.profiler import described
from modelserver.wings.profile.throughput import with_backlog
from tests.support.fake_step_engine import facts_of

FILES = ModelFiles(Path("m"), "r1", {}, "f1", True, "", "", False, (), 1000, 2, 20)
OWNER = ProfileOwner("m", "r1", "float32", "synthetic", "1", "cpu")
FACTS = facts_of(step_tokens=2048, step_queries=1024)
PROFILE = known(lambda tokens: 0.001 + 1e-6 * tokens, OWNER, 256, 2048)


@asynccontextmanager
async def serving(engine: SyntheticEngine) -> AsyncGenerator[tuple[StepQueue, Description]]:
    """An engine at work behind a queue."""
    queue, ready, loop = StepQueue(time.monotonic), asyncio.Event(), asyncio.get_running_loop()

    def show(state: EngineState, error: Exception | None) -> None:
        del state, error
        loop.call_soon_threadsafe(ready.set)

    bounds = QueueBounds(MergeLimits(FACTS.step_token_capacity, FACTS.step_query_capacity), 10**6)
    steps = EmbeddingSteps(queue, lambda _: bounds, lambda _: None, lambda *_: None)
    engine_loop = EngineLoop(lambda: engine, steps, show, PhaseWatchdog())
    engine_loop.start()
    await ready.wait()
    yield queue, describe("m", FACTS, FILES, described(PROFILE), "1")
    queue.close()
    assert await asyncio.to_thread(engine_loop.join, 10.0)


async def test_the_size_from_which_larger_batches_gain_nothing_is_found() -> None:
    """By a clock of the test's own: it is read once a batch, and a batch takes 20 ms, whatever it holds."""
    batches = count()
    async with serving(SyntheticEngine(FACTS, 0.0, 0.0)) as (queue, description):
        found = await with_backlog(PROFILE, queue, description, clock=lambda: 0.02 * next(batches))
    assert found.curve.backlog_tokens == pytest.approx(2048, rel=0.1)


async def test_an_engine_that_fails_leaves_the_profile_as_it_was() -> None:
    async with serving(SyntheticEngine(FACTS, 0.0, 0.0, sleep=_raise)) as (queue, description):
        assert await with_backlog(PROFILE, queue, description) == PROFILE


def _raise(seconds: float) -> None:
    raise RuntimeError(f"no sleep of {seconds} s")
