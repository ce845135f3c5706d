"""An engine, as the model server drives it: whole steps of queries that get a row each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int32]
Matrix = npt.NDArray[np.float32]


class Task(StrEnum):
    """The kind of work that a model is served for."""

    CLASSIFY = "classify"
    EMBED = "embed"
    GENERATE = "generate"
    RANK = "rank"


class Launch(StrEnum):
    """How the kernels of a step were launched; a metric's label."""

    GRAPH = "graph"
    EAGER = "eager"


CountLaunch = Callable[[Launch], object]
"""Called on the engine's thread for each step of an engine with CUDA graphs of its own."""


class Activation(StrEnum):
    """The function that makes scores of a classifier's logits."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a model scores one text or a pair: one score per label; a model that ranks has one.

    `template`: the text with {query} and {document} that a pair becomes; empty: as the tokenizer joins a pair.
    `token_types`: the tokens of a pair's second text have BERT's token type 1. `answers`: of a decoder without a
    classifier, two tokens, the difference of whose logits after a pair is its score: the second minus the first.
    """

    labels: tuple[str, ...]
    activation: Activation
    template: str = ""
    token_types: bool = False
    answers: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        return Task.CLASSIFY if len(self.labels) > 1 else Task.RANK


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a step's queries that are pooled by themselves (late chunks), each to a row of its own.

    `counts` int32 [queries]: how many each query has; 0: it is pooled whole, to one row. `bounds` int32 [Σ counts, 2]:
    a span's first token, and the one behind its last, within its query.
    """

    counts: IdArray
    bounds: IdArray

    @property
    def rows(self) -> IdArray:
        """The rows of each query."""
        return np.maximum(self.counts, 1)

    def tokens(self, lengths: IdArray) -> tuple[npt.NDArray[np.int64], IdArray]:
        """The places of all pooled tokens in a step of these queries, row after row; how many each row has."""
        rows = self.rows
        begins, ends = np.zeros(rows.sum(), np.int32), np.repeat(lengths, rows)
        spanned = np.repeat(self.counts > 0, rows)
        begins[spanned], ends[spanned] = self.bounds.T
        sizes = ends - begins
        first = np.repeat(np.cumsum(lengths) - lengths, rows) + begins
        places = np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        return places, sizes


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The properties of an engine, as `Describe` publishes them.

    A step holds at most `step_token_capacity` tokens and `step_query_capacity` queries, each of 1 to
    `max_input_tokens` ids in [0, `vocabulary_size`). An engine that generates runs at most `max_sequences` at once,
    each of at most `context_tokens`, whose keys and values take at most `kv_tokens` tokens. `dimensions`: floats of a
    query's row; 0 if it only generates. `scoring`: of a model that ranks or classifies. `capture_sizes`: tokens of the
    steps that it has CUDA graphs for; it pads a smaller one to the next. `pools_spans`: it takes `Spans`. `rectified`:
    ReLU makes its vectors. `operations_per_token`: of its matrices, attention left out; 0: not known.
    """

    kind: str
    version: str
    dtype: str
    device: str
    on_cpu: bool
    dimensions: int
    max_input_tokens: int
    vocabulary_size: int
    step_token_capacity: int
    step_query_capacity: int
    tasks: frozenset[Task] = frozenset((Task.EMBED,))
    context_tokens: int = 0
    max_sequences: int = 0
    kv_tokens: int = 0
    capture_sizes: tuple[int, ...] = ()
    scoring: Scoring | None = None
    pools_spans: bool = False
    rectified: bool = False
    operations_per_token: float = 0.0

    @property
    def gives_zeros(self) -> bool:
        """Whether a row may be all zero: behind ReLU, and where a score is not one of several that sum to 1."""
        return self.rectified if self.scoring is None else self.scoring.activation is not Activation.SOFTMAX

    @property
    def token_types(self) -> bool:
        return self.scoring is not None and self.scoring.token_types


class Step(Protocol):
    """One prepared engine step; it is executed once."""

    def execute(self) -> Matrix:
        """Compute scores, or pooled and not normalised vectors, float32 [rows, dimensions], in the order given.

        Called on the engine's thread only. Raises whatever the engine raises.
        """
        ...


class Measurable(Protocol):
    """An engine whose steps can be timed: one that only embeds, or an idle one of both tasks."""

    @property
    def facts(self) -> EngineFacts: ...

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> Step: ...


class Engine(Protocol):
    """One loaded model. Everything but `prepare` is called on the thread that built it."""

    @property
    def facts(self) -> EngineFacts: ...

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> Step:
        """Make a step ready: `token_ids` int32 [Σ lengths] end to end, `lengths` int32 [queries], all valid.

        `second_segments` int32 [queries]: where the tokens of type 1 begin in each query; None: nowhere. `spans`: what
        is pooled of each query; None: every query is pooled whole, to one row.
        Called on any thread, also while another step runs, so it leaves the engine's state alone.
        """
        ...

    def recover(self) -> None:
        """Forget a step that raised. Raises EngineBroken if the engine works no longer."""
        ...

    def close(self) -> None: ...


class StepThreads:
    """A step of fewer than `threaded_tokens` tokens gets one of the engine's threads, a larger one all (ADR 17)."""

    def __init__(self, count: int, use: Callable[[int], None]) -> None:
        """`use` sets the threads of the calling thread's next computations; between steps it stays at `count`."""
        self.count = count
        self.threaded_tokens = 0
        self._use = use

    @contextmanager
    def of(self, tokens: int) -> Generator[None]:
        if tokens >= self.threaded_tokens:
            yield
            return
        self._use(1)
        try:
            yield
        finally:
            self._use(self.count)
