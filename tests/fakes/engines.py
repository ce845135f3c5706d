"""A model server without a model: vectors that depend on nothing but a query's token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from aggregator.errors import BatchFailed, ModelServerLost
from aggregator.replicas.engine import OutgoingBatch, ServerDescription, StepResult
from aggregator.scheduler.replica import StepReport
from protos.modelserver.v1.curve import Curve, Rule

CURVE = Curve(floor_s=0.01, fixed_s=0.004, per_token_s=0.00001, saturation_point=600, rule=Rule.HINGE, max_tokens=8192)


def description(**changes: Any) -> ServerDescription:
    """What a fake server says of itself, with changes."""
    usual = ServerDescription(
        address="fake:1",
        instance_id="instance-1",
        model="fake",
        model_revision="r1",
        tokenizer_fingerprint="f1",
        dimensions=8,
        matryoshka_dimensions=frozenset(),
        max_input_tokens=256,
        step_token_capacity=8192,
        step_query_capacity=1024,
        vocabulary_size=40_000,
        normalizes=True,
        query_prompt="",
        document_prompt="",
        curve=CURVE,
    )
    return replace(usual, **changes)


def vector(token_ids: bytes, dimensions: int) -> npt.NDArray[np.float32]:
    """The vector of one query, float32 [dimensions], of any length but never zero."""
    seed = crc32(token_ids)
    return np.cos(np.arange(1, dimensions + 1, dtype=np.float64) * (1 + seed % 9973)).astype(np.float32)


def queries_of(token_ids: bytes, lengths: bytes) -> list[bytes]:
    """The token ids of each query of a packed batch."""
    ends = [0, *np.cumsum(np.frombuffer(lengths, "<i4") * 4).tolist()]
    return [token_ids[start:end] for start, end in pairwise(ends)]


def matrix_of(token_ids: bytes, lengths: bytes, dimensions: int) -> npt.NDArray[np.float32]:
    """The vectors of a packed batch, float32 [queries, dimensions]."""
    rows = [vector(query, dimensions) for query in queries_of(token_ids, lengths)]
    return np.array(rows, np.float32).reshape(-1, dimensions)


def batch(*queries: Sequence[int], **changes: Any) -> OutgoingBatch:
    """A batch of these token ids, with changes."""
    flat = [token for query in queries for token in query]
    usual = OutgoingBatch(
        batch_id="b1",
        token_ids=np.array(flat, "<i4").tobytes(),
        lengths=np.array([len(query) for query in queries], "<i4").tobytes(),
        query_count=len(queries),
        token_count=len(flat),
        attempt=0,
        isolate=False,
        max_step_tokens=600,
    )
    return replace(usual, **changes)


Verdict = Callable[[OutgoingBatch], BatchFailed | None]


class FakeEngine:
    """Answers after the time that its curve says; a `ports.Engine` that keeps what it was sent.

    `verdict` may fail a batch; `gate`, while cleared, holds every answer back.
    """

    def __init__(self, verdict: Verdict | None = None, **changes: Any) -> None:
        self._description = description(**changes)
        self._verdict = verdict
        self.sent: list[OutgoingBatch] = []
        self.running = 0
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def description(self) -> ServerDescription:
        """What it says of itself."""
        return self._description

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        """Run one batch; raises what `verdict` says, or ModelServerLost when it takes longer than `timeout_s`."""
        self.sent.append(batch)
        curve = self._description.curve
        duration_s = curve.time_s(batch.token_count) if curve is not None else 0.0
        self.running += 1
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(duration_s)
                await self.gate.wait()
        except TimeoutError as error:
            raise ModelServerLost("DEADLINE_EXCEEDED: the fake took too long") from error
        finally:
            self.running -= 1
        failure = self._verdict(batch) if self._verdict is not None else None
        if failure is not None:
            raise failure
        matrix = matrix_of(batch.token_ids, batch.lengths, self._description.dimensions)
        return StepResult(matrix, (), StepReport(batch.token_count, duration_s, 0, 0.0, 0.0))
