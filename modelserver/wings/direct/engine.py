"""Call the model that vLLM loaded directly, with attention metadata of our own and pooling in one go per batch.

The fast way for encoder-only models. It leans on vLLM's private interfaces, so it only serves when a self-check
against the general way agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec

from modelserver.engines.core import CoreEngine
from modelserver.engines.engine import IdArray, Matrix, Spans
from modelserver.engines.model_config import activated
from modelserver.engines.modules import Rows, VectorModules, score_modules
from modelserver.engines.vllm_internals import runner_of
from modelserver.errors import ModelServerError, device_errors
from modelserver.wings.direct.copies import to_cuda
from modelserver.wings.direct.graphs.layout import Parts


class NotDirect(ModelServerError):
    """This model, or this build of vLLM, cannot be called directly; the message has the reason."""


class DirectEngine:
    """Shares the weights of the CoreEngine it is made from, which stays usable beside it."""

    def __init__(self, core: CoreEngine) -> None:
        """Take hold of the loaded model. Raises NotDirect."""
        self._core = core
        self.threads = core.threads
        runner = _runner(core)
        group = _attention_group(runner)
        self._config = core.config
        self._model = runner.model
        self._group = group
        self._layers = tuple(group.layer_names)
        self.device: torch.device = runner.device
        self._modules = _modules(core, runner.model)
        # On a CPU a second thread must not start torch's threads beside the engine's, and the copy to the device
        # costs nothing; on a GPU both belong to the preparation.
        self._builds_ahead = self.device.type != "cpu"
        self.facts = replace(core.facts, kind="direct", capture_sizes=())

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> DirectStep:
        """Positions, bounds and rows of the packed queries; on a GPU also the copies and the metadata."""
        bounds = np.zeros(lengths.size + 1, np.int32)
        np.cumsum(lengths, out=bounds[1:])
        positions = np.arange(token_ids.size, dtype=np.int64) - np.repeat(bounds[:-1], lengths)
        types = None if second_segments is None else (positions >= np.repeat(second_segments, lengths)).astype(np.int32)
        queries = [each.tolist() for each in np.split(token_ids, bounds[1:-1])] if self._modules.prompts else []
        rows = self._modules.rows(lengths, queries, spans)
        layout = Layout(token_ids, lengths, bounds, positions, rows, types)
        return DirectStep(self, layout, self.to_device(layout) if self._builds_ahead else None)

    def to_device(self, layout: Layout) -> DeviceStep:
        """Copy to the device and build the attention metadata."""
        with torch.inference_mode():
            sizes_cpu, rows = (torch.from_numpy(layout.bounds), torch.from_numpy(layout.lengths)), layout.rows
            inputs = (torch.from_numpy(layout.token_ids), torch.from_numpy(layout.positions), *sizes_cpu)
            types = None if layout.token_types is None else torch.from_numpy(layout.token_types)
            on_cpu = (rows.first, rows.lengths, rows.segments, rows.left_out, rows.tokens)
            token_ids, positions, bounds, lengths, types, *places = self.copied((*inputs, types, *on_cpu))
            longest = int(layout.lengths.max())
            attention = self._attention((bounds, lengths), sizes_cpu, positions, longest)
            return DeviceStep(token_ids, positions, Rows(*places), types, attention)

    def copied(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Tensors of the host, or None, on the device: a GPU gets them by one copy."""
        return parts if self.device.type == "cpu" else to_cuda(parts, self.device)

    def forward(self, step: DeviceStep) -> Matrix:
        """Run the model and pool, all queries at once."""
        with device_errors(), torch.inference_mode():
            return self.finished(self._computed(step).cpu().numpy())

    def attend(self, inputs: Parts[torch.Tensor], longest: int) -> Attention:
        """The attention's metadata over the input buffer of a graph; asked for once, for kernels read the buffer."""
        with torch.inference_mode():
            sizes = inputs.bounds, inputs.lengths
            return self._attention(sizes, (sizes[0].cpu(), sizes[1].cpu()), inputs.positions.long(), longest)

    def compute(self, inputs: Parts[torch.Tensor], attention: Attention) -> torch.Tensor:
        """The forward pass over the input buffer of a graph, whose last queries may be empty."""
        with torch.inference_mode():
            segments = inputs.segments.long() if self._modules.needs_segments else None
            rows = Rows(inputs.first.long(), inputs.lengths.clamp(min=1), segments)
            types = inputs.types if self.facts.token_types else None
            return self._computed(DeviceStep(inputs.token_ids, inputs.positions.long(), rows, types, attention))

    def finished(self, matrix: Matrix) -> Matrix:
        """The engine's rows of those that a forward pass gave: scores of logits, and vectors as they are."""
        scoring = self.facts.scoring
        return matrix if scoring is None else activated(matrix, scoring.activation)

    @property
    def captures(self) -> bool:
        """Whether a graph can hold the forward pass: not where prompts are left out, whose lengths shape it."""
        return not self._modules.prompts

    def _computed(self, step: DeviceStep) -> torch.Tensor:
        """Vectors or logits float32 [rows, dimensions], on the device."""
        metadata, slots = step.attention
        typed = {} if step.token_types is None else {"token_type_ids": step.token_types}
        with set_forward_context(
            metadata,
            self._config,
            num_tokens=step.positions.numel(),
            cudagraph_runtime_mode=CUDAGraphMode.NONE,  # no graph of vLLM's own, also while one of ours is captured
            slot_mapping=slots,
        ):
            hidden = self._model(
                input_ids=step.token_ids,
                positions=step.positions,
                intermediate_tensors=None,
                inputs_embeds=None,
                **typed,
            )
            found: torch.Tensor = self._modules(hidden, step.rows)
            return found

    def _attention(
        self,
        sizes: tuple[torch.Tensor, torch.Tensor],
        sizes_cpu: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor,
        longest: int,
    ) -> Attention:
        """What attention reads of a step with these bounds and lengths of queries."""
        queries, tokens = sizes[1].numel(), positions.numel()
        slots = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        common = CommonAttentionMetadata(
            query_start_loc=sizes[0],
            query_start_loc_cpu=sizes_cpu[0],
            seq_lens=sizes[1],
            seq_lens_cpu_upper_bound=sizes_cpu[1],
            num_reqs=queries,
            num_actual_tokens=tokens,
            max_query_len=longest,
            max_seq_len=longest,
            block_table_tensor=torch.zeros((queries, 1), dtype=torch.int32, device=self.device),
            slot_mapping=slots,
            causal=False,
            positions=positions,
            is_prefilling=torch.ones(queries, dtype=torch.bool),
        )
        # A fast build leaves out the schedule for a kernel that encoders do not use.
        metadata = self._group.build_metadata(common, fast_build=True)
        return Attention(dict.fromkeys(self._layers, metadata), dict.fromkeys(self._layers, slots))

    def recover(self) -> None:
        """A failed forward leaves nothing behind in the model; check that it still computes."""
        self._core.recover()

    def close(self) -> None:
        self._core.close()
        del self._model, self._group, self._modules, self._config  # a reference to the engine does not keep the weights


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the packed queries lie: `bounds` int32 [queries + 1], `positions` int64 [Σ lengths], `rows` on the CPU.

    `token_types` int32 [Σ lengths]; None: all are 0.
    """

    token_ids: IdArray
    lengths: IdArray
    bounds: IdArray
    positions: npt.NDArray[np.int64]
    rows: Rows
    token_types: IdArray | None


class Attention(NamedTuple):
    """The attention's metadata and the slots of keys and values, by layer."""

    metadata: dict[str, Any]
    slots: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step on the device, ready to compute."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    rows: Rows
    token_types: torch.Tensor | None
    attention: Attention


@dataclass(frozen=True, slots=True)
class DirectStep:
    """One step of the direct engine; on a CPU its tensors are made when it runs."""

    engine: DirectEngine
    layout: Layout
    on_device: DeviceStep | None

    def execute(self) -> Matrix:
        with self.engine.threads.of(self.layout.token_ids.size):
            return self.engine.forward(self.on_device or self.engine.to_device(self.layout))


def _runner(core: CoreEngine) -> Any:
    if core.config.use_v2_model_runner:
        raise NotDirect("vLLM runs its second model runner: set VLLM_USE_V2_MODEL_RUNNER=0")
    runner = runner_of(core.core)
    if runner is None or not hasattr(runner, "attn_groups"):
        raise NotDirect("vLLM's model runner is not where it was")
    if runner.uses_mrope or runner.supports_mm_inputs:
        raise NotDirect("the model takes more than token ids and positions")
    return runner


def _attention_group(runner: Any) -> Any:
    groups = [group for groups in runner.attn_groups for group in groups]
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, EncoderOnlyAttentionSpec):
        raise NotDirect("the model is not an encoder with one kind of attention")
    return groups[0]


def _modules(core: CoreEngine, model: Any) -> VectorModules:
    if core.facts.scoring is not None:
        found = score_modules(model)
        if found is None:
            raise NotDirect("vLLM's class of this model classifies in a way of its own")
        return found
    if core.modules is None:
        raise NotDirect("vLLM's class of this model pools in a way of its own")
    return core.modules
