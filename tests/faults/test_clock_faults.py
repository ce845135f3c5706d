"""The clock of an aggregator steps under load: what has been taken in has its own time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.rows import Figures
from tests.faults.scene import Scene
from tests.faults.steady_load import Intent, Maker, Planned, question
from tests.integration.aggregator.desk import Sent

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

_LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
_VALID_S = 120.0

needs_faketime = pytest.mark.skipif(_LIBRARY is None, reason="no libfaketime: install the system package libfaketime")
goes_by_its_own_clock = pytest.mark.xfail(
    reason="an aggregator whose clock is minutes ahead takes what should not have expired for expired", strict=True
)


def expiring(number: int, request_id: str) -> Planned:
    """A question that expires in two minutes."""
    planned = question(number, request_id)
    message = pb.EmbedRequest.FromString(planned.sent.value or b"")
    message.expire_time.FromNanoseconds(int((time.time() + _VALID_S) * 1e9))
    return Planned(Sent(message.SerializeToString()), Intent(planned.intent.text))


async def step(scene: Scene, figures: Figures, make: Maker, step_s: int) -> None:
    """Under load, put the aggregator's clock forward or back by so much for a while."""
    clock = scene.folder / "clock"
    clock.write_text("+0")
    faked = {
        "LD_PRELOAD": str(_LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    await scene.server(SYNTHETIC__FIXED_S="0.05")
    await scene.aggregator(environment=faked)
    async with scene.under_load(400, make):
        async with scene.fault():
            clock.write_text(f"{step_s:+d}")
            await asyncio.sleep(10.0)  # the fault itself
            clock.write_text("+0")
        await scene.answers(1000)
    figures.take(await scene.verdict())


@needs_faketime
@pytest.mark.row("the aggregator's clock steps, requests without expiry")
@pytest.mark.parametrize("step_s", [300, -300])
async def test_a_step_of_the_clock_harms_nothing(scene: Scene, figures: Figures, step_s: int) -> None:
    await step(scene, figures, question, step_s)
    assert figures.verdict is not None
    assert figures.verdict.problems == ()


@needs_faketime
@pytest.mark.row("the aggregator's clock steps, requests that expire in 2 min")
@pytest.mark.parametrize("step_s", [pytest.param(300, marks=goes_by_its_own_clock), -300])
async def test_a_step_of_the_clock_expires_nothing(scene: Scene, figures: Figures, step_s: int) -> None:
    await step(scene, figures, expiring, step_s)
    assert figures.verdict is not None
    assert figures.verdict.problems == ()
