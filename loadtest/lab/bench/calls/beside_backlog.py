"""What gRPC's callers notice of a backlog in Kafka: their latency without it, and while it is worked off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from loadtest.clients.grpc import GrpcRunError, Seconds, at_rate
from loadtest.clients.prometheus import BatchFigures, batch_figures
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import REQUESTS, Plan, create_topics, fill, kafka, texts
from loadtest.plots import draw_alone
from loadtest.section import Plot, Series
from loadtest.stack.errors import StackError
from loadtest.stack.service import Aggregator, ModelServer

NAME = "beside"
BACKLOG = 100_000
TOKEN_BUDGET = 512
_FIXED_S, _PER_TOKEN_S = 0.06, 8e-5
BATCH_S = _FIXED_S + _PER_TOKEN_S * TOKEN_BUDGET
"""What a full batch takes the synthetic engine: long, so that the machine's own hiccups count for little."""
_TOKENS = 13
"""Of a question with its number, about."""
CAPACITY_PER_S = TOKEN_BUDGET / _TOKENS / BATCH_S
SHARE = 0.3
_REPLIES = "beside.replies"
_SECONDS = 20.0
_UNDER_WAY_TOKENS = 20 * TOKEN_BUDGET
_TIMEOUT_S = 60.0
_WINDOW_S = 0.5
_MEDIAN = 50


@dataclass(frozen=True, slots=True)
class Phase:
    """The calls of one phase, by when they were sent (seconds from its start) and how long each took, in seconds.

    `batches`: the batches that the aggregator packed in that time.
    """

    sent_s: Seconds
    latency_s: Seconds
    batches: BatchFigures

    def percentile_s(self, percent: float) -> float:
        """Of the calls' latencies."""
        return float(np.percentile(self.latency_s, percent))

    def over_time(self, percent: float, offset_s: float) -> list[tuple[float, float]]:
        """(seconds, milliseconds) of each half second."""
        windows = (self.sent_s // _WINDOW_S).astype(np.int64)
        return [
            (
                offset_s + (window + 0.5) * _WINDOW_S,
                float(np.percentile(self.latency_s[windows == window], percent)) * 1e3,
            )
            for window in np.unique(windows).tolist()
        ]


@dataclass(frozen=True, slots=True)
class Beside:
    """The same load, first alone and then beside the backlog."""

    alone: Phase
    beside: Phase

    @property
    def bound_s(self) -> float:
        """What gRPC's p99 is to stay within while there is a backlog."""
        return self.alone.percentile_s(99) + 2 * BATCH_S

    def plot(self) -> str:
        """Latency over time, as SVG."""
        begins_s = float(self.alone.sent_s[-1]) + _WINDOW_S
        lines = [
            Series(f"p{percent} {when}", phase.over_time(percent, offset_s), dashed=percent == _MEDIAN)
            for when, phase, offset_s in (("alone", self.alone, 0.0), ("beside the backlog", self.beside, begins_s))
            for percent in (99, _MEDIAN)
        ]
        limit = ("p99 alone and two batches", self.bound_s * 1e3)
        title = f"gRPC at {SHARE:.0%} of capacity, without and with {BACKLOG:,} queries in Kafka"
        return draw_alone(Plot(title, "seconds", "ms", lines, limit=limit, y_max=1.3 * self.bound_s * 1e3), "beside")


def measure(plan: Plan) -> list[Figure]:
    """One run in two phases; the plot of it goes beside the logs."""
    with kafka(plan) as setting:
        found = run(setting.bootstrap, plan.folder, _SECONDS)
    (plan.folder / "beside_backlog.svg").write_text(found.plot(), encoding="utf-8")
    notes = (
        f"{SHARE:.0%} of {CAPACITY_PER_S:.0f} queries/s by gRPC, {BACKLOG} queries in Kafka, synthetic engine,"
        f" full batch {BATCH_S * 1e3:.1f} ms"
    )

    def ms(figure: str, seconds: float) -> Figure:
        return Figure(NAME, figure, seconds * 1e3, "ms", 1, notes)

    more = (found.beside.percentile_s(99) - found.alone.percentile_s(99)) / BATCH_S
    return [
        ms("p50_alone", found.alone.percentile_s(50)),
        ms("p99_alone", found.alone.percentile_s(99)),
        ms("p50_beside_backlog", found.beside.percentile_s(50)),
        ms("p99_beside_backlog", found.beside.percentile_s(99)),
        Figure(NAME, "p99_more", more, "batch times", 1, notes, "≤ 2"),
        Figure(NAME, "batch_fill_beside_backlog", found.beside.batches.fill, "ratio", 1, notes),
    ]


def run(bootstrap: str, folder: Path, seconds: float) -> Beside:
    """Call for this many seconds, fill Kafka's topic, and call for as long again. Raises StackError."""
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(create_topics(bootstrap, [REQUESTS, _REPLIES]))
    engine = {"SYNTHETIC__FIXED_S": str(_FIXED_S), "SYNTHETIC__PER_TOKEN_S": str(_PER_TOKEN_S)}
    told = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false", **engine}
    with (
        ModelServer(folder / "modelserver.log", settings=told) as server,
        Aggregator(
            folder / "aggregator.log",
            kafka=bootstrap,
            model=server.model,
            servers=[server.address],
            settings={
                "KAFKA__TOPICS": f'[{{"name": "{REQUESTS}", "priority": "background"}}]',
                "KAFKA__REPLY_TOPIC": _REPLIES,
                "KAFKA__GROUP_ID": _REPLIES,
                "BATCHING__COALESCE": "false",
                "BATCHING__TOKEN_BUDGET": str(TOKEN_BUDGET),
            },
        ) as aggregator,
    ):
        return asyncio.run(_both(aggregator, bootstrap, seconds))


async def _both(aggregator: Aggregator, bootstrap: str, seconds: float) -> Beside:
    await _call(aggregator, 2.0)
    alone = await _call(aggregator, seconds)
    before = batch_figures(aggregator.metrics_address)
    await fill(bootstrap, BACKLOG)
    async with asyncio.timeout(_TIMEOUT_S):
        while (batch_figures(aggregator.metrics_address) - before).tokens < _UNDER_WAY_TOKENS:  # noqa: ASYNC110 - a page to look at
            await asyncio.sleep(0.1)
    beside = await _call(aggregator, seconds)
    left = BACKLOG * _TOKENS - (batch_figures(aggregator.metrics_address) - before).tokens
    if left < 0:
        raise StackError("the backlog was worked off before the calls had ended: call for less long")
    return Beside(alone, beside)


async def _call(aggregator: Aggregator, seconds: float) -> Phase:
    """Call for this many seconds. Raises StackError when a call fails."""
    per_s = SHARE * CAPACITY_PER_S
    before = batch_figures(aggregator.metrics_address)
    try:
        sent_s, latency_s = await at_rate(aggregator.address, texts(int(per_s * seconds)), per_s)
    except (grpc.aio.AioRpcError, GrpcRunError) as error:
        raise StackError(f"a call failed: {error!r}") from error
    return Phase(sent_s, latency_s, batch_figures(aggregator.metrics_address) - before)
