"""Gather what came back for each query sent, and sum it up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt
from tokenbatch_client import Embedding, TokenbatchError

_CODE_NAMES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
_UNANSWERED = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query: `embedding` is float32 [dimensions], None when `code` is not OK."""

    code: int
    embedding: npt.NDArray[np.float32] | None = None
    token_count: int = 0


def answer_of(row: Embedding) -> Answer:
    """What the client package gives for one query."""
    if row.error is not None:
        return Answer(code_of(row.error), None, row.token_count)
    return Answer(0, np.frombuffer(row.raw, "<f4") if row.raw else None, row.token_count)


def code_of(error: TokenbatchError) -> int:
    """The google.rpc.Code of it."""
    code: int = grpc.StatusCode[error.code].value[0]
    return code


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures. `latency_s` maps p50, p90, p99, p99.9, mean and max to seconds; empty without replies."""

    sent: int
    replies: int
    lost: int
    duplicates: int
    mismatched: int
    errors: dict[str, int]
    latency_s: dict[str, float]
    duration_s: float
    queries_per_s: float
    tokens: int
    tokens_per_s: float
    dimensions: int

    def write_json(self, file: Path) -> None:
        """The same names, as JSON."""
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")


@dataclass(slots=True, eq=False)
class Tally:
    """The outcome of each query, by its number from 0; clocks are the caller's, in seconds.

    `lines` says which line of the file each query is. Embeddings are kept only if requested: they are large.
    `mismatched` counts replies that contradict their request (another key, another request id).
    """

    lines: npt.NDArray[np.int64]
    keep_embeddings: bool = True
    duplicates: int = 0
    mismatched: int = 0
    sent: int = 0
    replies: int = 0
    tokens: int = 0
    dimensions: int = 0
    errors: Counter[int] = field(default_factory=Counter[int])
    _sent_s: npt.NDArray[np.float64] = field(init=False)
    _latency_s: npt.NDArray[np.float64] = field(init=False)
    _codes: npt.NDArray[np.int32] = field(init=False)
    _embeddings: npt.NDArray[np.float32] | None = None
    _first_sent_s: float = np.inf
    _last_reply_s: float = -np.inf

    def __post_init__(self) -> None:
        count = len(self.lines)
        self._sent_s = np.full(count, np.nan)
        self._latency_s = np.full(count, np.nan)
        self._codes = np.full(count, _UNANSWERED, np.int32)

    @property
    def complete(self) -> bool:
        return self.replies == len(self.lines)

    @property
    def latencies_s(self) -> npt.NDArray[np.float64]:
        """Of each query that was answered."""
        answered: npt.NDArray[np.float64] = self._latency_s[self._codes != _UNANSWERED]
        return answered

    def record_failed(self, numbers: range, code: int, now_s: float) -> None:
        """A request with these queries failed as a whole."""
        self.record_answers(numbers, [Answer(code)] * len(numbers), now_s)

    def record_answers(self, numbers: range, found: Sequence[Answer], now_s: float) -> None:
        """A request with these queries is answered; missing answers stay missing: they are lost."""
        for number, answer in zip(numbers, found, strict=False):
            self.record_answer(number, answer, now_s)
        self.duplicates += max(0, len(found) - len(numbers))

    def record_sent(self, numbers: range, now_s: float) -> None:
        self._sent_s[numbers.start : numbers.stop] = now_s
        self._first_sent_s = min(self._first_sent_s, now_s)
        self.sent += len(numbers)

    def record_answer(self, number: int, answer: Answer, now_s: float) -> None:
        """Query `number` is answered; any further answer to it is a duplicate."""
        if self._codes[number] != _UNANSWERED:
            self.duplicates += 1
            return
        self._codes[number] = answer.code
        self._latency_s[number] = now_s - self._sent_s[number]
        self._last_reply_s = max(self._last_reply_s, now_s)
        self.replies += 1
        self.tokens += answer.token_count
        if answer.code:
            self.errors[answer.code] += 1
        if answer.embedding is not None:
            self._keep(number, answer.embedding)

    def summary(self) -> Summary:
        """The run so far, in figures; it lasts from the first query sent to the last reply."""
        duration_s = max(self._last_reply_s - self._first_sent_s, 0.0) if self.replies else 0.0
        per_s = 1 / duration_s if duration_s else 0.0
        return Summary(
            sent=self.sent,
            replies=self.replies,
            lost=self.sent - self.replies,
            duplicates=self.duplicates,
            mismatched=self.mismatched,
            errors={_CODE_NAMES.get(code, str(code)): count for code, count in sorted(self.errors.items())},
            latency_s=_percentiles(self.latencies_s),
            duration_s=duration_s,
            queries_per_s=self.replies * per_s,
            tokens=self.tokens,
            tokens_per_s=self.tokens * per_s,
            dimensions=self.dimensions,
        )

    def embeddings(self) -> npt.NDArray[np.float32]:
        """Float32 [queries, dimensions]; zero where there is none."""
        if self._embeddings is None:
            return np.zeros((len(self.lines), 0), np.float32)
        return self._embeddings

    def write_npz(self, file: Path) -> None:
        """One row per query answered, in the order of sending: line, embedding, code, latency_s.

        `line` int64 [n], counted from 0; `embedding` float32 [n, dimensions], zero where `code` is not 0; `code`
        int32 [n]; `latency_s` float64 [n].
        """
        answered = self._codes != _UNANSWERED
        with file.open("wb") as out:
            np.savez(
                out,
                line=self.lines[answered],
                embedding=self.embeddings()[answered],
                code=self._codes[answered],
                latency_s=self._latency_s[answered],
            )

    def _keep(self, number: int, embedding: npt.NDArray[np.float32]) -> None:
        self.dimensions = len(embedding)
        if not self.keep_embeddings:
            return
        if self._embeddings is None:
            self._embeddings = np.zeros((len(self.lines), self.dimensions), np.float32)
        self._embeddings[number] = embedding


def _percentiles(latency_s: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(latency_s):
        return {}
    p50, p90, p99, p999 = np.percentile(latency_s, [50, 90, 99, 99.9]).tolist()
    mean, longest = float(latency_s.mean()), float(latency_s.max())
    return {"p50": p50, "p90": p90, "p99": p99, "p99.9": p999, "mean": mean, "max": longest}
