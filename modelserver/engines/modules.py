"""Pool the hidden states of a step and run the modules that follow, in float32, for both ways to drive vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate
from vllm.model_executor.layers.pooler.seqwise import (
    ClassifierPoolerHead,
    CLSPool,
    EmbeddingPoolerHead,
    LastPool,
    MeanPool,
    SequencePooler,
)
from vllm.model_executor.layers.pooler.seqwise.methods import SequencePoolingMethod
from vllm.model_executor.layers.pooler.special import DispatchPooler

from modelserver.engines.engine import IdArray, Spans
from modelserver.engines.pooling import Modules, Pooling
from modelserver.engines.vllm_internals import given_spans
from modelserver.errors import CannotStart

_VLLMS: dict[type[Any], Pooling] = {CLSPool: Pooling.CLS, LastPool: Pooling.LAST, MeanPool: Pooling.MEAN}
_OF_ONE_TOKEN = frozenset((Pooling.CLS, Pooling.LAST))


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the tokens of each row that is pooled lie: a query, or a span of one.

    `tokens`: the places of all pooled tokens in the step's hidden states; None: all, in their order. Of those, `first`,
    `lengths`, and `left_out` (tokens of each prompt that is not pooled; None: no such prompt): [rows]. `segments`: the
    row of each token, where `VectorModules.needs_segments`.
    """

    first: torch.Tensor
    lengths: torch.Tensor
    segments: torch.Tensor | None = None
    left_out: torch.Tensor | None = None
    tokens: torch.Tensor | None = None

    def to(self, device: torch.device) -> Rows:
        first, lengths = (part.to(device, non_blocking=True) for part in (self.first, self.lengths))
        others = (self.segments, self.left_out, self.tokens)
        return Rows(first, lengths, *(part if part is None else part.to(device, non_blocking=True) for part in others))


class VectorModules(nn.Module):  # type: ignore[misc]  # torch is without types to mypy
    """Turns hidden states [tokens, hidden] into vectors float32 [rows, dimensions], not normalised."""

    def __init__(self, modules: Modules) -> None:
        """Load the weights. Raises CannotStart if they are not as the modules' configuration says."""
        super().__init__()
        self.poolings, self.prompts = modules.poolings, modules.prompts
        self.layers = nn.Sequential(*(layer.load() for layer in modules.layers))
        self.needs_segments = not _OF_ONE_TOKEN.issuperset(modules.poolings)
        sizes = [layer.outputs for layer in modules.layers if layer.outputs is not None]
        self._outputs = sizes[-1] if sizes else None
        self.rectified = any(layer.rectifies for layer in modules.layers)

    @property
    def pools_spans(self) -> bool:
        """Whether spans of a query have vectors of the kind that it has as a whole."""
        return self.poolings == (Pooling.MEAN,)

    def dimensions(self, hidden_size: int) -> int:
        return self._outputs or hidden_size * len(self.poolings)

    def left_out(self, queries: Sequence[Sequence[int]]) -> list[int]:
        """How many tokens each query's prompt has; 0 if it begins with none."""

        def begun(query: Sequence[int]) -> Iterator[int]:
            return (len(each) for each in self.prompts if tuple(query[: len(each)]) == each and len(query) > len(each))

        return [next(begun(query), 0) for query in queries]

    def rows(self, lengths: IdArray, queries: Sequence[Sequence[int]], spans: Spans | None) -> Rows:
        """The pooled rows of queries of these lengths, on the CPU; `queries`: their tokens, if there are `prompts`."""
        places, sizes = (None, lengths) if spans is None else spans.tokens(lengths)
        segments = np.repeat(np.arange(sizes.size), sizes) if self.needs_segments else None
        left_out = None
        if self.prompts:
            left_out = np.array(self.left_out(queries))
            if spans is not None:
                left_out = np.repeat(np.where(spans.counts, 0, left_out), spans.rows)
        first = torch.from_numpy(np.cumsum(sizes, dtype=np.int64) - sizes)
        others = (None if part is None else torch.from_numpy(part) for part in (segments, left_out, places))
        return Rows(first, torch.from_numpy(sizes.copy()), *others)  # those of a message cannot be written

    def forward(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        hidden = hidden if rows.tokens is None else hidden[rows.tokens]
        tokens = self._tokens(hidden, rows) if self.needs_segments else None
        parts = [_pooled(each, hidden, rows, tokens) for each in self.poolings]
        vectors: torch.Tensor = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        return vectors

    def _tokens(self, hidden: torch.Tensor, rows: Rows) -> _Tokens:
        values, segments, counts = hidden.to(torch.float32), rows.segments, rows.lengths
        assert segments is not None, "A pooling of all tokens was prepared without their segments. This is a bug."
        if rows.left_out is None and Pooling.WEIGHTED_MEAN not in self.poolings:
            return _Tokens(values, segments, counts, values[:0, :1])
        positions = torch.arange(segments.numel(), device=segments.device) - rows.first[segments]
        weights = (positions + 1).to(torch.float32).unsqueeze(1)
        if rows.left_out is None:
            return _Tokens(values, segments, counts, weights)
        kept = positions >= rows.left_out[segments]
        return _Tokens(values[kept], segments[kept], counts - rows.left_out, weights[kept])


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The hidden states that are pooled, float32, without those of prompts that are left out.

    counts: of each row. weights: of a weighted mean, [tokens, 1]; empty without one.
    """

    values: torch.Tensor
    segments: torch.Tensor
    counts: torch.Tensor
    weights: torch.Tensor

    def largest(self) -> torch.Tensor:
        """Of each row's values; torch.segment_reduce would read its lengths on the host."""
        rows = torch.zeros((self.counts.numel(), self.values.shape[-1]), dtype=torch.float32, device=self.values.device)
        places = self.segments.unsqueeze(1).expand_as(self.values)
        return rows.scatter_reduce_(0, places, self.values, "amax", include_self=False)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros((self.counts.numel(), values.shape[-1]), dtype=torch.float32, device=values.device)
        return sums.index_add_(0, self.segments, values)


def _pooled(pooling: Pooling, hidden: torch.Tensor, rows: Rows, tokens: _Tokens | None) -> torch.Tensor:
    if pooling is Pooling.CLS:
        first = rows.first if rows.left_out is None else rows.first + rows.left_out
        return hidden[first].to(torch.float32)
    if pooling is Pooling.LAST:
        return hidden[rows.first + rows.lengths - 1].to(torch.float32)
    assert tokens is not None, f"{pooling} was prepared as a pooling of one token. This is a bug."
    counts = tokens.counts.unsqueeze(1)
    match pooling:
        case Pooling.MAX:
            return tokens.largest()
        case Pooling.WEIGHTED_MEAN:
            return tokens.sums(tokens.values * tokens.weights) / tokens.sums(tokens.weights)
        case Pooling.MEAN_SQRT:
            return tokens.sums(tokens.values) / counts.to(torch.float32).sqrt()
        case _:
            return tokens.sums(tokens.values) / counts


class _ModulesPool(SequencePoolingMethod):  # type: ignore[misc]  # vLLM is without types to mypy
    """Replaces vLLM's pooling."""

    def __init__(self, modules: VectorModules) -> None:
        super().__init__()
        self.modules_after = modules

    def get_pooling_updates(self, task: object) -> PoolingParamsUpdate:
        del task
        return PoolingParamsUpdate(requires_token_ids=bool(self.modules_after.prompts))

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> torch.Tensor | list[torch.Tensor]:
        cursor, modules = pooling_metadata.get_pooling_cursor(), self.modules_after
        if cursor.is_partial_prefill():
            raise RuntimeError("a step holds a part of a query. This is a bug.")
        lengths: IdArray = cursor.prompt_lens_cpu.numpy()
        ids = [each.tolist() for each in pooling_metadata.get_prompt_token_ids_cpu()] if modules.prompts else []
        spans = given_spans(pooling_metadata.pooling_params)
        rows = modules.rows(lengths, ids, spans).to(hidden_states.device)
        found: torch.Tensor = modules(hidden_states[: int(lengths.sum())], rows)
        return found if spans is None else list(torch.split(found, spans.rows.tolist()))


def place_modules(model: Any, modules: Modules | None) -> VectorModules | None:
    """Put the modules into a model that vLLM has loaded, in the place of its own pooler's parts.

    None: vLLM's class of this model pools in a way of its own, and the files ask for nothing else.
    Raises CannotStart where they do.
    """
    pooler = getattr(model, "pooler", None)
    if isinstance(pooler, DispatchPooler):
        pooler = pooler.poolers_by_task["embed"]
    own = _VLLMS.get(type(getattr(pooler, "pooling", None)))
    if own is None or not isinstance(pooler, SequencePooler) or not isinstance(pooler.head, EmbeddingPoolerHead):
        if modules is not None and modules.needs_place:
            raise CannotStart(
                f"vLLM pools this model by its own {type(pooler).__name__}, and its files name further modules or"
                " poolings, which cannot be computed after it"
            )
        return None
    found = VectorModules(modules or Modules((own,)))
    found.to(next(model.parameters()).device)
    pooler.pooling, pooler.head = _ModulesPool(found), _Nothing()
    return found


class ScoreModules(VectorModules):
    """Turns hidden states [tokens, hidden] into logits float32 [queries, labels] by the head of a loaded classifier."""

    def __init__(self, pooling: Pooling, layers: Sequence[tuple[Any, Any]]) -> None:
        """`layers`: the layers after the pooling, each with the dtype of its computation (None: its input's)."""
        super().__init__(Modules((pooling,)))
        self._head = tuple(layers)

    def forward(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        found = super().forward(hidden, rows)
        for layer, dtype in self._head:
            found = layer(found if dtype is None else found.to(dtype))
        return found.to(torch.float32)


def score_modules(model: Any) -> ScoreModules | None:
    """The computation after the transformer of a classifier that vLLM has loaded; None for an unknown head."""
    dispatch = getattr(model, "pooler", None)
    pooler = dispatch.poolers_by_task.get("classify") if isinstance(dispatch, DispatchPooler) else None
    head = getattr(pooler, "head", None)
    if not isinstance(pooler, SequencePooler) or not isinstance(head, ClassifierPoolerHead) or head.classifier is None:
        return None
    pooling, layers = pooler.pooling, [(head.classifier, head.head_dtype)]
    if isinstance(pooling, SequencePooler) and isinstance(pooling.head, EmbeddingPoolerHead) and pooling.head.projector:
        layers.insert(0, (pooling.head.projector, pooling.head.head_dtype))
        pooling = pooling.pooling
    own = _VLLMS.get(type(pooling))
    return None if own is None else ScoreModules(own, layers)


class _Nothing(nn.Module):  # type: ignore[misc]
    """Replaces vLLM's head."""

    def forward(self, pooled: torch.Tensor, pooling_metadata: object) -> torch.Tensor:
        del pooling_metadata
        return pooled
