"""The next message to one caller of Generate: the new tokens of its sequences, of one step or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from modelserver.wings.generation.generator import Logprobs
from protos.modelserver.v1 import modelserver_pb2 as pb


class Outbox:
    """Filled on the engine's thread, emptied on the event loop; a slow reader never blocks a step."""

    def __init__(self, filled: Callable[[], object]) -> None:
        """`filled` is called, on the engine's thread, when an empty outbox gets a message."""
        self._filled = filled
        self._lock = Lock()
        self._sequences: list[int] = []
        self._counts: list[int] = []
        self._token_ids: list[int] = []
        self._logprobs: list[pb.SequenceLogprobs] = []
        self._finished: list[pb.FinishedSequence] = []
        self._seconds: dict[int, float] = {}
        self._state = pb.GenerateStep()
        self._empty = True

    def add(self, sequence: int, token_ids: Sequence[int], logprobs: Logprobs | None = None) -> None:
        """New tokens of one sequence; not to be taken before `end_step`."""
        with self._lock:
            self._sequences.append(sequence)
            self._counts.append(len(token_ids))
            self._token_ids.extend(token_ids)
            if logprobs is not None:
                self._logprobs.append(_packed(sequence, logprobs))

    def charge(self, account: int, seconds: float) -> None:
        """A part of a step's time fell to a sequence of this account."""
        with self._lock:
            self._seconds[account] = self._seconds.get(account, 0.0) + seconds

    def uncharged_s(self) -> float:
        """The time of a caller that left, which no message reports."""
        with self._lock:
            seconds, self._seconds = sum(self._seconds.values()), {}
        return seconds

    def finish(self, finished: pb.FinishedSequence) -> None:
        with self._lock:
            self._finished.append(finished)

    def end_step(self, state: pb.GenerateStep) -> None:
        """The step is complete; `state`: the engine's fields of the message."""
        with self._lock:
            self._state = state
            was_empty, self._empty = self._empty, False
        if was_empty:
            self._filled()

    def take(self) -> pb.GenerateStep | None:
        with self._lock:
            if self._empty:
                return None
            step = pb.GenerateStep(
                sequences=np.array(self._sequences, "<u4").tobytes(),
                counts=np.array(self._counts, "<u4").tobytes(),
                token_ids=np.array(self._token_ids, "<i4").tobytes(),
                finished=self._finished,
                logprobs=self._logprobs,
                accounts=np.array(list(self._seconds), "<u4").tobytes(),
                account_seconds=np.array(list(self._seconds.values()), "<f8").tobytes(),
            )
            step.MergeFrom(self._state)
            self._sequences, self._counts, self._token_ids, self._seconds = [], [], [], {}
            self._logprobs, self._finished = [], []
            self._empty = True
            return step


def _packed(sequence: int, logprobs: Logprobs) -> pb.SequenceLogprobs:
    return pb.SequenceLogprobs(
        sequence=sequence,
        width=logprobs.token_ids.shape[1],
        token_ids=logprobs.token_ids.astype("<i4").tobytes(),
        logprobs=logprobs.values.astype("<f4").tobytes(),
        ranks=logprobs.ranks.astype("<i4").tobytes(),
    )
