"""What the live page costs the aggregator: processor time by the number of viewers, idle and under load."""

from __future__ import annotations

import asyncio
import statistics
import time
import timeit
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np

from aggregator.observability.recorder import Recorder
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import Replica, ReplicaPolicy, SendReason, StepReport
from aggregator.scheduler.work_item import Task
from loadtest.clients.grpc import at_rate
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import InstantModelServers, Plan, texts
from loadtest.lab.processor import cpu_s
from loadtest.screen import ERRORS
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, without_kafka

NAME = "page"
VIEWERS = (0, 10, 200)
_TURN_S = 10.0
_SETTLE_S = 1.0
_CALLS_PER_S = 40.0
_PER_CALL = 8
_STEP_S = 0.03
_UNWATCHED_CALLS = 200_000


def measure(plan: Plan) -> list[Figure]:
    """In turns: each number of viewers, without and with load."""
    engine = InstantModelServers(plan, 2, _STEP_S)
    front = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=engine.addresses)
    shares: dict[tuple[bool, int], list[float]] = {}
    latencies: dict[int, list[float]] = {}
    with engine, front as aggregator:
        for turn in range(plan.repeats):
            for loaded in (False, True):
                for viewers in VIEWERS:
                    share, p99_s = asyncio.run(_turn(aggregator, viewers, loaded=loaded))
                    shares.setdefault((loaded, viewers), []).append(100 * share)
                    latencies.setdefault(viewers, []).append(1e3 * p99_s)
                    ERRORS.print(f"{NAME} {turn + 1} of {plan.repeats}: {viewers} viewers, {share:.1%} of a core")
    return figures(shares, latencies, plan.repeats)


def figures(
    shares: dict[tuple[bool, int], list[float]], latencies: dict[int, list[float]], repeats: int
) -> list[Figure]:
    """What viewers add, turn by turn: medians of percent of a core, and the p99 of calls."""
    found = [Figure(NAME, "nobody_looks", _unwatched_ns(), "ns/batch", 1, "two calls that return at once")]
    for loaded in (False, True):
        load = f"{_CALLS_PER_S * _PER_CALL:.0f} questions/s" if loaded else "idle"
        notes = f"{load}, turns of {_TURN_S:.0f} s"
        alone = shares[loaded, 0]
        name = "loaded" if loaded else "idle"
        found.append(Figure(NAME, f"{name}_alone", statistics.median(alone), "% of a core", repeats, notes))
        for viewers in VIEWERS[1:]:
            added = [watched - bare for watched, bare in zip(shares[loaded, viewers], alone, strict=True)]
            wanted = "≤ 1" if viewers == VIEWERS[1] else ""
            figure = f"{name}_{viewers}_viewers_add"
            found.append(Figure(NAME, figure, statistics.median(added), "% of a core", repeats, notes, wanted))
    for viewers in VIEWERS:
        p99_ms = statistics.median(value for value in latencies[viewers] if value)
        found.append(Figure(NAME, f"p99_with_{viewers}_viewers", p99_ms, "ms", repeats, "of the loaded turns"))
    return found


async def _turn(aggregator: Aggregator, viewers: int, *, loaded: bool) -> tuple[float, float]:
    """The aggregator's share of a core, and the p99 of calls (0 without load)."""
    async with AsyncExitStack() as watching:
        for _ in range(viewers):
            await watching.enter_async_context(_viewer(aggregator.metrics_address))
        await asyncio.sleep(_SETTLE_S)
        before_s, started_s = cpu_s(aggregator.pid), time.monotonic()
        p99_s = await _load(aggregator.address) if loaded else 0.0
        await asyncio.sleep(max(0.0, started_s + _TURN_S - time.monotonic()))
        return (cpu_s(aggregator.pid) - before_s) / (time.monotonic() - started_s), p99_s


@asynccontextmanager
async def _viewer(address: str) -> AsyncGenerator[None]:
    """A browser that reads every event."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /live HTTP/1.1\r\n\r\n")

    async def read() -> None:
        while await reader.read(1 << 20):
            pass

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        writer.close()


async def _load(target: str) -> float:
    """The p99 of calls at a fixed rate."""
    questions = texts(int(_TURN_S * _CALLS_PER_S) * _PER_CALL)
    _, latency_s = await at_rate(target, questions, _CALLS_PER_S, _PER_CALL)
    return float(np.percentile(latency_s, 99))


def _unwatched_ns() -> float:
    """What recording costs a batch while nobody looks."""
    recorder, report = Recorder(), StepReport(600, 0.02, 0, 0.0, 0.0)
    batch = Batch("b", [], 600, Replica("a", None, 640, ReplicaPolicy()), SendReason.FULL, None, 0.0, 1.0, 640)
    latencies_s = [0.0] * 64

    def record() -> None:
        recorder.batch_done(batch, Task.EMBED, report, 0.0)
        recorder.answered("grpc", latencies_s)

    return 1e9 * min(timeit.repeat(record, number=_UNWATCHED_CALLS, repeat=3)) / _UNWATCHED_CALLS
