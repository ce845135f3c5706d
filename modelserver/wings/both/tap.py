"""Take embeddings out of the steps of vLLM's generate engine, on Model Runner V1 and V2.

An embedding is a request for one token whose name begins with `NAME`. One method of the model runner is extended,
`sample_tokens`: it pools the hidden states of such requests before they are sampled, and puts the vectors into vLLM's
own field for them, from where the scheduler hands them on. An aborted or preempted request needs nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from modelserver.engines.pooling import Pooling

NAME = "embedding/"
_V2 = "vllm.v1.worker.gpu.model_runner"
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepRows:
    """A step's requests, by row of the batch.

    begin: the first index into the step's hidden states. counts: tokens of the step. starts: tokens computed before it.
    prompts: tokens of the whole prompt.
    """

    names: Sequence[str]
    begin: _Ints
    counts: _Ints
    starts: _Ints
    prompts: _Ints

    @property
    def embeddings(self) -> _Ints:
        return embedding_rows(self.names)


class Pooler:
    """Pools step by step: of a prompt in parts it keeps one float32 row and a count."""

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self.held: dict[str, tuple[torch.Tensor, int]] = {}

    def pool(self, step: StepRows, hidden: torch.Tensor) -> list[torch.Tensor | None]:
        """By row of the batch, the vectors float32 [hidden] of the embeddings whose prompt ends in this step.

        hidden: [tokens, hidden], of all rows of the step.
        """
        rows = step.embeddings
        done = step.starts[rows] + step.counts[rows] >= step.prompts[rows]
        take = rows[done]
        if self.pooling is Pooling.LAST:
            vectors = hidden[_index(step.begin[take] + step.counts[take] - 1, hidden)].float()
        elif self.pooling is Pooling.CLS:
            vectors = self._first(step, take, hidden)
        else:
            vectors = self._mean(step, done, hidden)
        found: list[torch.Tensor | None] = [None] * len(step.names)
        for row, vector in zip(take.tolist(), _to_host(vectors), strict=True):
            found[row] = vector
        return found

    def forget_all_but(self, known: Collection[str]) -> None:
        for name in [name for name in self.held if name not in known]:
            del self.held[name]

    def _mean(self, step: StepRows, done: npt.NDArray[np.bool_], hidden: torch.Tensor) -> torch.Tensor:
        rows = step.embeddings
        sizes, starts = step.counts[rows], step.starts[rows]
        offsets = np.repeat(step.begin[rows] - (np.cumsum(sizes) - sizes), sizes)
        part = hidden[_index(np.arange(int(sizes.sum())) + offsets, hidden)]
        sums = torch.segment_reduce(part.float(), "sum", lengths=_index(sizes, hidden), unsafe=True)
        for place in np.flatnonzero((starts > 0) | ~done):
            name, start = step.names[int(rows[place])], int(starts[place])
            if start:  # 0 again after a preemption: the sum is dropped
                held, count = self.held.pop(name, (sums[place], -1))
                if count != start:
                    raise RuntimeError(f"{count} tokens are summed, and a part starts at {start}: a cache was read")
                sums[place] += held
            if not done[place]:
                self.held[name] = (sums[place].clone(), start + int(sizes[place]))
        return sums[_index(np.flatnonzero(done), hidden)] / _index(step.prompts[rows[done]], hidden)[:, None]

    def _first(self, step: StepRows, take: _Ints, hidden: torch.Tensor) -> torch.Tensor:
        first = step.embeddings[step.starts[step.embeddings] == 0]
        for row, vector in zip(first, hidden[_index(step.begin[first], hidden)].float(), strict=True):
            self.held[step.names[int(row)]] = (vector, 1)
        found = [self.held.pop(step.names[int(row)])[0] for row in take]
        return torch.stack(found) if found else hidden[:0].float()


class TapV1:
    """Extends GPUModelRunner and CPUModelRunner of vllm/v1/worker."""

    pooler: Pooler
    execute_model_state: Any
    input_batch: Any
    requests: Any

    def sample_tokens(self, grammar_output: Any) -> Any:
        state = self.execute_model_state
        pooled = None if state is None else _guarded(self, state)
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]  # of the runner that it extends
        if pooled is not None:
            (output if hasattr(output, "pooler_output") else output._model_runner_output).pooler_output = pooled  # noqa: SLF001 - vLLM's asynchronous output
        return output

    def pooled(self, state: Any) -> list[torch.Tensor | None] | None:
        """By row of the batch; None: no row is an embedding's."""
        batch = self.input_batch
        names: list[str] = batch.req_ids
        if self.pooler.held:
            self.pooler.forget_all_but(self.requests)
        if not embedding_rows(names).size:
            return None
        scheduled = state.scheduler_output.num_scheduled_tokens
        size = len(names)
        counts = np.fromiter((scheduled[name] for name in names), np.int64, size)
        starts = batch.num_computed_tokens_cpu[:size].astype(np.int64)
        prompts = batch.num_prompt_tokens[:size].astype(np.int64)
        begin = np.cumsum(counts) - counts
        return self.pooler.pool(StepRows(names, begin, counts, starts, prompts), state.hidden_states)

    def only_embeddings(self, rows: int) -> bool:
        """Whether all rows of the step, of which it has this many, are embeddings."""
        names = self.input_batch.req_ids
        return len(names) == rows and embedding_rows(names).size == rows


class TapV2:
    """Extends GPUModelRunner of vllm/v1/worker/gpu."""

    pooler: Pooler
    execute_model_state: Any
    req_states: Any
    step_names: Sequence[str] = ()

    def sample_tokens(self, grammar_output: Any) -> Any:
        state = self.execute_model_state
        pooled = None if state is None or state.hidden_states is None else _guarded(self, state)
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]  # of the runner that it extends
        if pooled is not None:
            output.model_runner_output.pooler_output = pooled
        return output

    def pooled(self, state: Any) -> list[torch.Tensor | None] | None:
        batch = state.input_batch
        names = self.step_names = batch.req_ids
        states = self.req_states
        if self.pooler.held:
            self.pooler.forget_all_but(states.req_id_to_index)
        if not embedding_rows(names).size:
            return None
        begin = batch.query_start_loc_np[: batch.num_reqs].astype(np.int64)
        counts = batch.num_scheduled_tokens.astype(np.int64)
        starts = batch.num_computed_tokens_np.astype(np.int64)
        prompts = states.prompt_len.np[batch.idx_mapping_np].astype(np.int64)
        return self.pooler.pool(StepRows(names, begin, counts, starts, prompts), state.hidden_states)

    def only_embeddings(self, rows: int) -> bool:
        return len(self.step_names) == rows and embedding_rows(self.step_names).size == rows


def tap(runner: Any, pooling: Pooling) -> None:
    """Extend the loaded model runner, and leave the logits out of steps that only embed."""
    kind: Any = type(runner)
    runner.__class__ = type("Tapped", (TapV2 if is_v2(runner) else TapV1, kind), {})
    runner.pooler = Pooler(pooling)
    _skip_logits(runner)


def is_v2(runner: Any) -> bool:
    """Whether it is vLLM's Model Runner V2."""
    return any(kind.__module__ == _V2 for kind in type(runner).__mro__)


def refusal(config: Any) -> str | None:
    """Why embeddings and generations cannot share an engine of this configuration of vLLM; None if they can."""
    parallel = config.parallel_config
    split = ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
    if any(getattr(parallel, name, 1) > 1 for name in split):
        return "pipeline or context parallelism leaves the hidden states on one rank"
    if config.speculative_config is not None:
        return "speculative decoding changes which row is whose"
    if getattr(parallel, "use_ubatching", False):
        return "microbatching runs a step in two halves"
    model = config.model_config
    if model.is_encoder_decoder or not model.hf_text_config.to_dict().get("is_causal", True):
        return "the model attends in both directions"
    if config.cache_config.kv_sharing_fast_prefill:
        return "kv_sharing_fast_prefill lets rows skip layers"
    return None


def embedding_rows(names: Sequence[str]) -> _Ints:
    return np.flatnonzero([name.startswith(NAME) for name in names])


def _skip_logits(runner: Any) -> None:
    """Where every row embeds, one row of zeros stands for all logits: the output layer is not even read."""
    inner = runner.model.compute_logits
    zeros: list[torch.Tensor] = []

    def compute_logits(hidden: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not runner.only_embeddings(hidden.shape[0]):
            return inner(hidden, *arguments, **options)
        if not zeros:
            zeros.append(torch.zeros(1, runner.model_config.get_vocab_size(), device=hidden.device))
        return zeros[0].expand(hidden.shape[0], -1)

    runner.model.compute_logits = compute_logits


def _guarded(runner: Any, state: Any) -> list[torch.Tensor | None] | None:
    try:
        found: list[torch.Tensor | None] | None = runner.pooled(state)
    except Exception:
        runner.execute_model_state = None  # else every later step raises
        raise
    return found


def _index(values: npt.NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(like.device, non_blocking=True)


def _to_host(vectors: torch.Tensor) -> torch.Tensor:
    """Copy; on a GPU into pinned memory without waiting, as the runner waits for its own, later copy of the tokens."""
    if vectors.device.type == "cpu":
        return vectors
    host = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
    host.copy_(vectors, non_blocking=True)
    return host
