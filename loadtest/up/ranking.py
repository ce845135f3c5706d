"""Search in two stages: find a question's neighbours by their vectors, then rank them, and show both orders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Column, Table
from tokenbatch_client import Client, TokenbatchError

from loadtest.kit import grpc as by_grpc
from loadtest.kit.grpc import GrpcRun, GrpcRunError
from loadtest.kit.tally import Tally
from loadtest.screen import exchange_bars
from loadtest.up.sample import nearest

_CONSIDERED, _SHOWN, _NEIGHBOURS = 4, 2, 10
_PER_CALL = 8
_TIMEOUT_S = 60.0

Order = Sequence[tuple[str, float]]
"""Texts, the best first, each with its score."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """A question, and the same neighbours in two orders: by the cosines of vectors, and by the ranker's scores."""

    question: str
    by_cosine: Order
    by_score: Order


def rank(questions: Sequence[str], target: str, *, embeds: str, ranks: str) -> list[Ranking]:
    """The questions that have the nearest neighbours; `embeds` and `ranks` name models at `target`.

    Raises GrpcRunError when one of the questions gets no vector, or one of the neighbours no score.
    """
    tally = Tally(np.arange(len(questions)))
    plan = GrpcRun(target, per_call=_PER_CALL, options={"model": embeds})
    with exchange_bars(tally, "gRPC") as move:
        asyncio.run(by_grpc.run(questions, tally, plan, move))
    summary = tally.summary()
    if summary.lost or summary.errors:
        raise GrpcRunError(f"questions were lost: {summary.lost}, or failed: {summary.errors}")
    with Client(target, timeout_s=_TIMEOUT_S) as client:
        found = nearest(tally.embeddings(), _CONSIDERED, _NEIGHBOURS)
        return [
            _ranking(client, ranks, questions[row], [(questions[place], cosine) for place, cosine in neighbours])
            for row, neighbours in found
            if has_no_number(questions[row])
        ][:_SHOWN]


def has_no_number(question: str) -> bool:
    """Whether the ranker that is made here can read it: its 22 million parameters take one year for another."""
    return not any(character.isdigit() for character in question)


def _ranking(client: Client, model: str, question: str, neighbours: Order) -> Ranking:
    texts = [text for text, _ in neighbours]
    try:
        ranked = client.rank(question, texts, model=model)
    except TokenbatchError as error:
        raise GrpcRunError(f"a call failed: {error}") from error
    failed = [each.error for each in ranked if each.error]
    if failed:
        raise GrpcRunError(f"{len(failed)} of {len(texts)} neighbours got no score: {failed[0]}")
    return Ranking(question, neighbours, [(each.document, each.score) for each in ranked])


def orders_table(rankings: Sequence[Ranking]) -> Table:
    """Both orders side by side, a line for each place."""
    scores = Column("cosine", justify="right"), Column("score", justify="right")
    table = Table("nearest by vectors", scores[0], "as ranked", scores[1])
    for ranking in rankings:
        table.add_row(f"[bold]{ranking.question}", "", "", "")
        for (near, cosine), (ranked, score) in zip(ranking.by_cosine, ranking.by_score, strict=True):
            table.add_row(near, f"{cosine:.2f}", ranked, f"{score:.2f}")
        table.add_section()
    return table
