"""The engine of a model server, without a model: it runs when told to; and batches for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Spans
from modelserver.engines.synthetic import synthetic_facts
from modelserver.errors import EngineBroken
from modelserver.scheduler.queued_batch import Outcome, QueuedBatch
from modelserver.service.batch import Batch
from protos.modelserver.v1 import modelserver_pb2 as pb

POISON = 13
DEADLY = 66
LOST = 404
BROKEN, BLANK = 500, 501
"""The rows of queries that begin with these are NaN, and zero."""
WAIT_S = 60.0


def facts_of(step_tokens: int = 100, step_queries: int = 50, max_input_tokens: int = 20) -> EngineFacts:
    return synthetic_facts(
        dimensions=2,
        max_input_tokens=max_input_tokens,
        vocabulary_size=1000,
        step_tokens=step_tokens,
        step_queries=step_queries,
    )


def batch_of(*queries: Sequence[int], isolated: bool = False, max_step_tokens: int = 100) -> Batch:
    ids = np.array([token for query in queries for token in query], np.int32)
    lengths = np.array([len(query) for query in queries], np.int32)
    return Batch(ids, lengths, len(queries), None, (), isolated, max_step_tokens)


def sized(tokens: int, *, isolated: bool = False, max_step_tokens: int = 100) -> Batch:
    """A batch of one query with so many tokens."""
    return batch_of([7] * tokens, isolated=isolated, max_step_tokens=max_step_tokens)


def expected(batch: Batch) -> list[list[float]]:
    """What the fake engine answers: each query's sum of ids, and its length."""
    ends = np.cumsum(batch.lengths)
    return [[float(batch.token_ids[e - n : e].sum()), float(n)] for e, n in zip(ends, batch.lengths, strict=True)]


@dataclass(slots=True, eq=False)
class FakeStepEngine:
    """Raises on POISON, breaks on DEADLY, loses the vectors of queries that start with LOST, and lies on two others.

    While `gate` is closed its steps wait in the middle.
    """

    facts: EngineFacts = field(default_factory=facts_of)
    gate: threading.Event = field(default_factory=threading.Event)
    running: threading.Event = field(default_factory=threading.Event)
    prepared_by: list[str] = field(default_factory=list[str])
    prepared: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    second_segments: list[list[int] | None] = field(default_factory=list[list[int] | None])
    spans: list[Spans | None] = field(default_factory=list[Spans | None])
    steps: list[list[int]] = field(default_factory=list[list[int]])
    recoveries: int = 0
    closed: bool = False
    broken: bool = False

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> FakeStep:
        self.spans.append(spans)
        self.second_segments.append(None if second_segments is None else second_segments.tolist())
        self.prepared_by.append(threading.current_thread().name)
        self.prepared.release()
        return FakeStep(self, token_ids, lengths, spans)

    def recover(self) -> None:
        self.recoveries += 1
        if self.broken:
            raise EngineBroken("it was deadly")

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True)
class FakeStep:
    engine: FakeStepEngine
    token_ids: IdArray
    lengths: IdArray
    spans: Spans | None = None

    def execute(self) -> Matrix:
        self.engine.steps.append(self.lengths.tolist())
        self.engine.running.set()
        assert self.engine.gate.wait(WAIT_S), "the test never opened the gate"
        if (self.token_ids == DEADLY).any():
            self.engine.broken = True
        if np.isin(self.token_ids, (POISON, DEADLY)).any():
            raise RuntimeError("poison")
        if self.spans is not None:
            places, sizes = self.spans.tokens(self.lengths)
            sums = np.add.reduceat(self.token_ids[places], np.cumsum(sizes) - sizes)
            return np.asarray(np.stack((sums, sizes), axis=1), np.float32)
        sums = np.add.reduceat(self.token_ids, np.cumsum(self.lengths) - self.lengths)
        first = self.token_ids[np.cumsum(self.lengths) - self.lengths]
        matrix: Matrix = np.asarray(np.stack((sums, self.lengths), axis=1), np.float32)
        matrix[first == BROKEN], matrix[first == BLANK] = np.nan, 0.0
        kept: Matrix = matrix[first != LOST]
        return kept


class Client:
    """Sends batches and keeps what comes back."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._changed = threading.Condition()
        self._sent = 0

    def queued(
        self,
        batch: Batch,
        *,
        ready_s: float = 0.0,
        deadline_s: float = float("inf"),
        priority: pb.Priority = pb.PRIORITY_DEFAULT,
    ) -> QueuedBatch:
        number, self._sent = self._sent, self._sent + 1

        def deliver(outcome: Outcome) -> None:
            with self._changed:
                assert number not in self.outcomes, "a batch was answered twice"
                self.outcomes[number] = outcome
                self._changed.notify_all()

        return QueuedBatch(batch, deliver, ready_s, deadline_s, priority)

    def wait(self, count: int) -> list[Outcome]:
        """The outcomes of the first `count` batches."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(n in self.outcomes for n in range(count)), WAIT_S)
            return [self.outcomes[number] for number in range(count)]
