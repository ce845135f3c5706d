"""The rows of inputs computed before, by the bytes of their sequences: equal bytes are equal computations."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

import numpy as np
from typing_extensions import override

from aggregator.admission.known_rows import Input, KnownRows
from aggregator.model_server import ServerDescription
from aggregator.request.request import Request
from aggregator.request.vector import CompletedBatch, Float32Matrix, Vector
from aggregator.scheduler.work_item import WorkItem
from aggregator.settings.aggregator import AggregatorSettings
from k8s.pod.metrics_buffer import BufferedCounter, Instrument, MetricsBuffer

ENTRY_BYTES = 400
"""Of an entry besides its rows, its sequence and its tenant: the objects around them, their place in the table."""
_Key = tuple[bytes, int, str]
"""A sequence with its marks, the number of its tokens, which tells marks from ids, and whose it is."""
_BYTES = Instrument("tokenbatch.cache.bytes", "By", "bytes of the rows that the cache keeps")


class RowCache(KnownRows):
    """The rows of one model revision in at most `most_bytes`; the least recently used go first.

    Rows are kept as the engine gave them, so that every dimension and encoding is made of the same ones. `by_tenant`:
    a tenant finds rows of its own inputs only, so that nobody learns from the time of a call what others asked.
    `lookups` counts inputs, by `hit` and `miss`.
    """

    def __init__(
        self, description: ServerDescription, most_bytes: int, lookups: BufferedCounter, *, by_tenant: bool
    ) -> None:
        self._description = description
        self._most_bytes = most_bytes
        self._lookups = lookups
        self._by_tenant = by_tenant
        self._entries = OrderedDict[_Key, tuple[bytes, int]]()  # the bytes of an input's rows, its chunks
        self._answer: CompletedBatch | None = None
        self._answered: list[bytes] = []
        self.bytes = 0

    @override
    def find(self, request: Request, inputs: Sequence[Input]) -> tuple[Sequence[Input], Sequence[tuple[int, Vector]]]:
        if request.redriven:  # an operator wants it computed
            return inputs, ()
        tenant = request.tenant if self._by_tenant else ""
        unknown: list[Input] = []
        found: list[tuple[int, Vector]] = []
        for each in inputs:
            index, sequence, token_count = each
            key = (sequence, token_count, tenant)
            entry = self._entries.get(key)
            if entry is None:
                unknown.append(each)
            else:
                self._entries.move_to_end(key)
                found.append((index, self._vector(*entry, token_count)))
        self._lookups.add(len(found), "hit")
        self._lookups.add(len(unknown), "miss")
        return unknown, found

    def _vector(self, rows: bytes, chunks: int, token_count: int) -> Vector:
        """A vector of rows in the matrix that all vectors found in one admission share: `seal` makes it."""
        if self._answer is None:
            of, none = self._description, np.empty((0, 0), "<f4")
            self._answer = CompletedBatch(
                "", of.model, of.model_revision, 0, none, 0.0, 0.0, labels=of.labels, cached=True
            )
        place = len(self._answered)
        width = len(rows) // max(1, chunks)
        self._answered += (rows[start : start + width] for start in range(0, len(rows), width))
        return Vector(self._answer, place, token_count, 0.0, chunks)

    @override
    def seal(self, now_s: float) -> None:
        if self._answer is not None:
            rows = np.frombuffer(b"".join(self._answered), "<f4")
            self._answer.matrix = rows.reshape(len(self._answered), -1)
            self._answer.done_s = now_s
            self._answer, self._answered = None, []

    @override
    def keep(self, items: Sequence[WorkItem], failed: Collection[int], matrix: Float32Matrix) -> None:
        data, width = np.ascontiguousarray(matrix, "<f4").tobytes(), 4 * matrix.shape[1]
        start = 0
        for place, item in enumerate(items):
            end = start + item.rows * width
            if place not in failed:
                self._keep(item, data[start:end])
            start = end

    def _keep(self, item: WorkItem, rows: bytes) -> None:
        for tenant in {query.tenant for query in item.waiters} if self._by_tenant else ("",):
            key, entry = (item.token_ids, item.token_count, tenant), (rows, item.chunks)
            if key not in self._entries:
                self._entries[key] = entry
                self.bytes += _size(key, entry)
        while self.bytes > self._most_bytes:
            self.bytes -= _size(*self._entries.popitem(last=False))


def _size(key: _Key, entry: tuple[bytes, int]) -> int:
    return len(key[0]) + len(key[2]) + len(entry[0]) + ENTRY_BYTES


def open_caches(settings: AggregatorSettings, buffer: MetricsBuffer) -> Callable[[ServerDescription], KnownRows] | None:
    """What opens the cache of each model revision; None where no bytes are granted."""
    most_bytes, by_tenant = settings.batching.cache_bytes, settings.grpc.authenticated
    if not most_bytes:
        return None
    lookups = buffer.counter("tokenbatch.cache.lookups", "{query}", "queries looked up in the cache", "result")
    caches = list[weakref.ref[RowCache]]()

    def read() -> dict[Instrument, dict[tuple[str, ...], float]]:
        return {_BYTES: {(): float(sum(cache.bytes for each in tuple(caches) if (cache := each()) is not None))}}

    def open_cache(description: ServerDescription) -> KnownRows:
        if not description.details.is_repeatable:
            return KnownRows()
        cache = RowCache(description, most_bytes, lookups, by_tenant=by_tenant)
        caches[:] = [each for each in caches if each() is not None] + [weakref.ref(cache)]
        return cache

    buffer.gauges((_BYTES,), read)
    return open_cache
