"""An engine without a model, in place of a model server: vectors that depend on nothing but a query's token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aggregator.errors import BatchFailed, EngineFailed, ModelServerLost
from aggregator.model_server import GenerationLoad, OutgoingBatch, ServerDescription, StepResult
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import StepReport
from modelserver.engines.engine import Spans

Ids = npt.NDArray[np.int32]
CURVE = Curve(floor_s=0.01, fixed_s=0.004, per_token_s=0.00001, saturation_point=600, rule=Rule.HINGE, max_tokens=8192)


def description(**changes: Any) -> ServerDescription:
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


def computed(token_ids: Ids, lengths: Ids, dimensions: int) -> npt.NDArray[np.float32]:
    """The vectors of a packed batch, float32 [queries, dimensions]: Σ ids, number of ids, 3, 4 and so on."""
    queries = np.split(token_ids, np.cumsum(lengths)[:-1])
    rest = range(3, dimensions + 1)
    rows = [(query.sum(), len(query), *rest)[:dimensions] for query in queries]
    return np.array(rows, np.float32).reshape(-1, dimensions)


def matrix_of(token_ids: bytes, lengths: bytes, dimensions: int) -> npt.NDArray[np.float32]:
    """The same of what goes over the wire."""
    return computed(np.frombuffer(token_ids, "<i4"), np.frombuffer(lengths, "<i4"), dimensions)


def batch(*queries: Sequence[int], **changes: Any) -> OutgoingBatch:
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


Compute = Callable[[Ids, Ids, int], npt.NDArray[np.float32]]


@dataclass(eq=False)
class FakeEngine:
    """Runs one batch at a time, as long as its curve says times `slowness`, and keeps it in `batches`.

    It fails with the `failures` first, then on ids that are `poison`; while `gate` is cleared no batch begins.
    """

    description: ServerDescription = field(default_factory=description)
    poison: frozenset[int] = frozenset()
    failures: list[BatchFailed] = field(default_factory=list[BatchFailed])
    slowness: float = 1.0
    compute: Compute = computed
    batches: list[OutgoingBatch] = field(default_factory=list[OutgoingBatch])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    load: GenerationLoad | None = None
    last_steps: Sequence[GenerationLoad] = ()
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def queries(self) -> int:
        return sum(batch.query_count for batch in self.batches)

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        """Run one batch. Raises what it is to fail with, and ModelServerLost after `timeout_s`."""
        self.batches.append(batch)
        came_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s), self._busy:
                await self.gate.wait()
                return await self._run(batch, asyncio.get_running_loop().time() - came_s)
        except TimeoutError as error:
            raise ModelServerLost("DEADLINE_EXCEEDED: the fake took too long") from error

    async def _run(self, batch: OutgoingBatch, staged_s: float) -> StepResult:
        curve = self.description.curve
        duration_s = curve.time_s(batch.token_count) * self.slowness if curve is not None else 0.0
        if duration_s:
            await asyncio.sleep(duration_s)
        if self.failures:
            raise self.failures.pop(0)
        ids, lengths = np.frombuffer(batch.token_ids, "<i4"), np.frombuffer(batch.lengths, "<i4")
        if self.poison & set(ids.tolist()):
            raise EngineFailed("the engine fell over")
        if batch.span_counts:
            bounds = np.frombuffer(batch.spans, "<i4").reshape(-1, 2)
            places, lengths = Spans(np.frombuffer(batch.span_counts, "<i4"), bounds).tokens(lengths)
            ids = ids[places]
        matrix = self.compute(ids, lengths, self.description.dimensions)
        return StepResult(matrix, (), StepReport(batch.token_count, duration_s or 1e-4, 0, 0.0, staged_s))
