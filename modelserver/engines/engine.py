"""An engine, as the model server drives it: whole steps of embeddings, or sequences that gain tokens step by step.

An engine of the second kind may embed as well: an embedding is then a sequence that ends with its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Generator as Yielding
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protos.modelserver.v1 import modelserver_pb2 as pb

IdArray = npt.NDArray[np.int32]
Matrix = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float32]


class Task(StrEnum):
    """The kind of work that a model is served for."""

    CLASSIFY = "classify"
    EMBED = "embed"
    GENERATE = "generate"
    RANK = "rank"


EMBED_AND_GENERATE = frozenset((Task.EMBED, Task.GENERATE))
"""The two tasks that one model may have at once."""


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
    ReLU makes its vectors.
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


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of a sequence's new tokens: ids and logarithms [tokens, width], each token first; ranks [tokens] of those."""

    token_ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The new tokens that one step gave one sequence. `finished`: these are its last ones.

    `length`: it reached max_tokens or the model's limit; otherwise it stopped. `stop_tokens`: of its last tokens, how
    many are not text. `vector`: of an embedding, float32 [dimensions], not normalised; then the tokens are meaningless.
    `broken`: the engine's scores of its next token are not numbers, so that the token means nothing.
    """

    name: str
    token_ids: Sequence[int]
    finished: bool = False
    length: bool = False
    stop_tokens: int = 0
    logprobs: Logprobs | None = None
    vector: Vector | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work of the last step: prompt tokens of generations, sequences that decoded, tokens of embeddings.

    `by_name`: the tokens of each sequence and embedding.
    """

    prefill_tokens: int
    decoding: int
    embedding_tokens: int = 0
    by_name: Mapping[str, int] = field(default_factory=dict[str, int])

    def shares_s(self, duration_s: float) -> dict[str, float]:
        """The part of a step of this duration that each sequence and embedding took, by its tokens."""
        each_s = duration_s / max(1, sum(self.by_name.values()))
        return {name: tokens * each_s for name, tokens in self.by_name.items()}


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The work that an engine holds between two steps.

    `decoding`: generations whose prompt is computed. `begun`: tokens left of each prompt that is computed in part.
    `waiting_tokens`: of prompts that are not begun. `embeddings`: tokens left of each embedding.
    """

    decoding: int = 0
    begun: Sequence[int] = ()
    waiting_tokens: int = 0
    embeddings: Sequence[int] = ()

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of generations that are not computed yet."""
        return sum(self.begun) + self.waiting_tokens


class Generator(Protocol):
    """One loaded model that generates, and embeds if that is among its tasks.

    Everything is called on the thread that built it. `running` and `load` count generations and embeddings apart.
    """

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def running(self) -> int:
        """Generations that hold keys and values."""
        ...

    @property
    def load(self) -> EngineLoad: ...

    @property
    def free_kv_tokens(self) -> int:
        """Tokens whose keys and values fit the free KV cache."""
        ...

    @property
    def has_work(self) -> bool: ...

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        """Start a sequence after `token_ids`, all of them valid. Raises ValueError for a parameter out of range.

        Of the sequences that wait for their first step, those with the least `turn_s` are first; equal ones in the
        order of arrival.
        """
        ...

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        """Compute the vector of `token_ids`, all of them valid, before prompts that wait."""
        ...

    def abort(self, names: Collection[str]) -> None:
        """Forget sequences, and free their KV cache at once; unknown names are ignored."""
        ...

    def discard(self, names: Collection[str]) -> None:
        """Forget the sequences of a step that raised, the only ones that ran. Raises EngineBroken."""
        ...

    def limit(self, step_tokens: int, sequences: int, prompt_part: int = 0) -> None:
        """Limit the next steps: tokens, generations at once, and tokens of one prompt (0: all of them)."""
        ...

    def preempt(self) -> None:
        """Preempt every generation; each resumes with the tokens that it has."""
        ...

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step. Raises whatever the engine raises."""
        ...

    def recover(self) -> None:
        """Forget every sequence after a step that raised. Raises EngineBroken if the engine works no longer."""
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
    def of(self, tokens: int) -> Yielding[None]:
        if tokens >= self.threaded_tokens:
            yield
            return
        self._use(1)
        try:
            yield
        finally:
            self._use(self.count)
