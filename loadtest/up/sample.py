"""Send the first bundled questions through a running stack on both ways, and show what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt
from rich.table import Column, Table

from loadtest.kit import grpc, kafka
from loadtest.kit.grpc import GrpcRun, GrpcRunError
from loadtest.kit.kafka import KafkaRun
from loadtest.kit.prometheus import BatchFigures, batch_figures
from loadtest.kit.tally import Summary, Tally
from loadtest.screen import duration, exchange_bars

_SHOWN, _NEIGHBOURS = 3, 2
_ONE_BY_ONE_S = 6.0
"""Questions are asked one by one no longer than this: then those that are left are not asked."""
_FEW = 20
_BATCHED_RUNS = 3


@dataclass(frozen=True, slots=True)
class Passage:
    """The outcome of the questions on one way."""

    name: str
    summary: Summary
    batches: BatchFigures


@dataclass(frozen=True, slots=True)
class Gain:
    """Queries per second: each question after the answer to the one before, and all of them at once."""

    one_by_one: float
    batched: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The same questions on both ways; `embeddings` is float32 [questions, dimensions], by Kafka."""

    questions: Sequence[str]
    passages: tuple[Passage, ...]
    embeddings: npt.NDArray[np.float32]

    @property
    def complete(self) -> bool:
        """Whether every question got its vector on both ways."""
        return not any(each.summary.lost or each.summary.errors for each in self.passages)


def take_sample(questions: Sequence[str], through_kafka: KafkaRun, through_grpc: GrpcRun, metrics: str) -> Sample:
    """Send the questions through Kafka, then through gRPC; `metrics` is the aggregator's monitoring address."""
    tallies = Tally(np.arange(len(questions))), Tally(np.arange(len(questions)))
    before = batch_figures(metrics)
    with exchange_bars(tallies[0], "Kafka") as move:
        asyncio.run(kafka.run(questions, tallies[0], through_kafka, move))
    between = batch_figures(metrics)
    with exchange_bars(tallies[1], "gRPC") as move:
        asyncio.run(grpc.run(questions, tallies[1], through_grpc, move))
    after = batch_figures(metrics)
    passages = (
        Passage("Kafka", tallies[0].summary(), between - before),
        Passage("gRPC", tallies[1].summary(), after - between),
    )
    return Sample(questions, passages, tallies[0].embeddings())


def measure_gain(questions: Sequence[str], through_grpc: GrpcRun) -> Gain:
    """Ask the same questions over gRPC, one by one and all at once, for no longer than some seconds."""
    asked, took_s = 0, 0.0
    while asked < len(questions) and took_s < _ONE_BY_ONE_S:
        few = _ask(questions[asked : asked + _FEW], replace(through_grpc, concurrency=1))
        asked, took_s = asked + few.replies, took_s + few.duration_s
    at_once = replace(through_grpc, concurrency=len(questions))
    rates = [_ask(questions, at_once).queries_per_s for _ in range(_BATCHED_RUNS)]
    return Gain(asked / took_s, median(rates))


def _ask(questions: Sequence[str], through_grpc: GrpcRun) -> Summary:
    tally = Tally(np.arange(len(questions)), keep_embeddings=False)
    asyncio.run(grpc.run(questions, tally, through_grpc, lambda: None))
    summary = tally.summary()
    if summary.lost or summary.errors:
        raise GrpcRunError(f"questions were lost: {summary.lost}, or failed: {summary.errors}")
    return summary


def passages_table(sample: Sample, gain: Gain) -> Table:
    """One column for each way; last what batching buys."""
    table = Table("", *(Column(passage.name, justify="right") for passage in sample.passages))

    def row(name: str, cells: Sequence[str]) -> None:
        table.add_row(name, *cells)

    summaries = [each.summary for each in sample.passages]
    batches = [each.batches for each in sample.passages]
    row("queries", [f"{each.sent:,}" for each in summaries])
    row("lost", [_alarming(each.lost) for each in summaries])
    for code in sorted({code for each in summaries for code in each.errors}):
        row(f"errors: {code}", [_alarming(each.errors.get(code, 0)) for each in summaries])
    row("batches", [f"{each.batches:,.0f}" for each in batches])
    row("tokens per batch", [f"{each.tokens_per_batch:,.0f}" for each in batches])
    budgets = [f"{each.token_budget:,.0f}" for each in batches]
    row("token budget, mean" if len(set(budgets)) > 1 else "token budget", budgets)
    row("fill of the token budget", [f"{each.fill:.0%}" for each in batches])
    row("latency p50", [duration(each.latency_s.get("p50")) for each in summaries])
    row("latency p99", [duration(each.latency_s.get("p99")) for each in summaries])
    table.add_section()
    row("one by one, queries/s", ["", f"{gain.one_by_one:,.0f}"])
    row("batched, queries/s", ["", f"{gain.batched:,.0f}"])
    row("batching buys", ["", f"[bold]{gain.batched / gain.one_by_one:.1f} ×"])
    return table


def budgets_note(sample: Sample) -> str:
    """The reason why the ways had other token budgets; empty where they had the same."""
    budgets = sorted({f"{each.batches.token_budget:,.0f}" for each in sample.passages}, key=len)
    if len(budgets) == 1:
        return ""
    return (
        f"The token budgets differ, {' and '.join(budgets)}: a backlog of records gets larger batches than calls, which"
        " wait for their answers. So the fills are shares of different budgets."
    )


def neighbours_table(questions: Sequence[str], embeddings: npt.NDArray[np.float32]) -> Table:
    """The questions that have the nearest neighbours among all, each with its own."""
    table = Table("question", "nearest among them", Column("cosine", justify="right"))
    for question, neighbours in nearest(embeddings, _SHOWN, _NEIGHBOURS):
        for place, (neighbour, cosine) in enumerate(neighbours):
            table.add_row("" if place else questions[question], questions[neighbour], f"{cosine:.2f}")
        table.add_section()
    return table


def nearest(
    embeddings: npt.NDArray[np.float32], shown: int, neighbours: int
) -> list[tuple[int, list[tuple[int, float]]]]:
    """The `shown` rows whose nearest row is nearest, no row twice, each with its `neighbours` and their cosines."""
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.maximum(norms, np.float32(1e-12))
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    found: list[tuple[int, list[tuple[int, float]]]] = []
    seen: set[int] = set()
    for row in np.argsort(-cosines.max(axis=1)).tolist():
        places = np.argsort(-cosines[row])[:neighbours].tolist()
        if row in seen or places[0] in seen:
            continue
        seen |= {row, *places}
        found.append((row, [(place, float(cosines[row, place])) for place in places]))
        if len(found) == shown:
            break
    return found


def _alarming(count: int) -> str:
    return f"[bold red]{count:,}" if count else "[green]0"
