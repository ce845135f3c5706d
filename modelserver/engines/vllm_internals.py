"""The parts of vLLM beyond its documented interface that are used, for both model runners, in one place.

`tests/integration/modelserver/test_vllm_source.py` compares `USED` with the source of the wheels for CPUs and for GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.entrypoints.pooling.scoring.utils import compress_token_type_ids
from vllm.model_executor.models import adapters, registry
from vllm.platforms import current_platform
from vllm.v1.engine.core import EngineCore

from modelserver.engines.engine import IdArray, Spans
from modelserver.process_env import described_threads

T = TypeVar("T")

_SPANS, _NO_SPANS = "spans", np.empty((0, 2), np.int32)
_TAKES_RANGE = isinstance(compress_token_type_ids([0, 1]), tuple)

USED: Mapping[str, tuple[str, ...]] = {
    "vllm.config.vllm.VllmConfig": ("speculative_config", "use_v2_model_runner"),
    "vllm.config.cache.CacheConfig": ("kv_sharing_fast_prefill",),
    "vllm.config.compilation.CompilationConfig": ("cudagraph_capture_sizes", "cudagraph_mode"),
    "vllm.config.parallel.ParallelConfig": (
        "decode_context_parallel_size",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "use_ubatching",
    ),
    "vllm.entrypoints.pooling.scoring.utils": ("compress_token_type_ids(token_type_ids)",),
    "vllm.model_executor.models.registry": ("_run_in_subprocess(fn)",),
    "vllm.config.model.ModelConfig": (
        "attn_type",
        "hf_text_config",
        "is_encoder_decoder",
        "score_type",
        "get_vocab_size()",
        "try_get_generation_config()",
        "get_diff_sampling_param()",
    ),
    "vllm.model_executor.models.adapters": ("_load_st_projector(model_config)",),
    "vllm.model_executor.layers.pooler.seqwise.poolers.SequencePooler": ("head", "pooling"),
    "vllm.v1.pool.metadata.PoolingMetadata": ("get_pooling_cursor()", "get_prompt_token_ids_cpu()"),
    "vllm.v1.pool.metadata.PoolingCursor": ("first_token_indices_gpu", "is_partial_prefill()", "prompt_lens_cpu"),
    "vllm.v1.engine.core.EngineCore": (
        "__init__(vllm_config, executor_class, log_stats)",
        "step()",
        "abort_requests(request_ids)",
        "get_supported_tasks()",
        "get_kv_cache_group_metadata()",
        "shutdown()",
        "model_executor",
        "request_block_hasher",
        "scheduler",
        "vllm_config",
    ),
    "vllm.v1.core.sched.scheduler.Scheduler": (
        "add_request(request)",
        "_preempt_request(request, timestamp)",
        "has_requests()",
        "prev_step_scheduled_req_ids",
        "reset_prefix_cache()",
        "schedule()",
        "kv_cache_manager",
        "max_num_active_reqs",
        "max_num_scheduled_tokens",
        "requests",
        "running",
    ),
    "vllm.v1.core.kv_cache_manager.KVCacheManager": ("block_pool",),
    "vllm.v1.core.block_pool.BlockPool": ("get_num_free_blocks()",),
    "vllm.v1.executor.uniproc_executor.UniProcExecutor": ("driver_worker",),
    "vllm.v1.worker.worker_base.WorkerWrapperBase": ("worker",),
    "vllm.v1.worker.gpu_worker.Worker": ("model_runner",),
    "vllm.v1.request.Request": (
        "__init__(request_id, prompt_token_ids, sampling_params, pooling_params, arrival_time, block_hasher)",
        "lora_request",
        "num_computed_tokens",
        "num_tokens",
        "priority",
        "request_id",
        "status",
    ),
    # Runner V1: the direct engine and seeds by position.
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": (
        "attn_groups",
        "device",
        "discard_request_mask",
        "execute_model_state",
        "input_batch",
        "model",
        "model_config",
        "optimistic_seq_lens_cpu",
        "requests",
        "sample_tokens(grammar_output)",
        "supports_mm_inputs",
        "uses_mrope",
    ),
    "vllm.forward_context": (
        "set_forward_context(attn_metadata, vllm_config, num_tokens, cudagraph_runtime_mode, slot_mapping)",
    ),
    "vllm.config.compilation.CUDAGraphMode": ("NONE",),
    "vllm.v1.attention.backend.CommonAttentionMetadata": (
        "block_table_tensor",
        "causal",
        "is_prefilling",
        "max_query_len",
        "max_seq_len",
        "num_actual_tokens",
        "num_reqs",
        "positions",
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu_upper_bound",
        "slot_mapping",
    ),
    "vllm.v1.attention.backend.AttentionMetadataBuilder": (
        "build(common_prefix_len, common_attn_metadata, fast_build)",
    ),
    "vllm.v1.attention.backends.flash_attn.FlashAttentionMetadataBuilder": (
        "build(common_prefix_len, common_attn_metadata, fast_build)",
    ),
    "vllm.v1.worker.utils.AttentionGroup": ("build_metadata(common_attn_metadata)", "kv_cache_spec", "layer_names"),
    "vllm.v1.worker.gpu_model_runner.ExecuteModelState": ("hidden_states", "scheduler_output"),
    "vllm.v1.worker.gpu_model_runner.AsyncGPUModelRunnerOutput": ("_model_runner_output",),
    "vllm.v1.worker.gpu_input_batch.InputBatch": (
        "generators",
        "num_computed_tokens_cpu",
        "num_prompt_tokens",
        "num_reqs",
        "req_ids",
    ),
    "vllm.v1.utils.CpuGpuBuffer": ("np",),
    "vllm.v1.core.sched.output.SchedulerOutput": ("num_scheduled_tokens",),
    "vllm.v1.outputs.ModelRunnerOutput": ("pooler_output",),
    "vllm.v1.outputs.LogprobsLists": ("logprob_token_ids", "logprobs", "sampled_token_ranks"),
    "vllm.v1.engine.EngineCoreOutput": ("finish_reason", "new_logprobs", "new_token_ids", "pooling_output"),
    # Runner V2: noise by seed and position.
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner": (
        "execute_model_state",
        "model",
        "model_config",
        "req_states",
        "sample_tokens(grammar_output)",
    ),
    "vllm.v1.worker.gpu.async_utils.AsyncOutput": ("model_runner_output",),
    "vllm.v1.worker.gpu.buffer_utils.UvaBackedTensor": ("np",),
    "vllm.v1.worker.gpu.model_runner.ExecuteModelState": ("hidden_states", "input_batch"),
    "vllm.v1.worker.gpu.input_batch.InputBatch": (
        "idx_mapping_np",
        "num_computed_tokens_np",
        "num_reqs",
        "num_scheduled_tokens",
        "query_start_loc_np",
        "req_ids",
    ),
    "vllm.v1.worker.gpu.states.RequestState": ("prompt_len", "req_id_to_index"),
    "vllm.v1.worker.gpu.sample.gumbel": ("gumbel_sample(logits, seed, pos)",),
}
"""The attributes used, and the methods with the parameters given, by class or module."""


def inspect_classes_in_process() -> None:
    """Let vLLM look at a model's class in this process.

    It starts another process, which imports vLLM again, so that this one does not initialise CUDA before it must: a
    build for CPUs has none.
    """
    module: Any = registry
    module._run_in_subprocess = _called  # noqa: SLF001 - vLLM has no setting for it


def extra_kwargs(lengths: IdArray, second_segments: IdArray | None, spans: Spans | None) -> Sequence[Mapping[str, Any]]:
    """The `extra_kwargs` of each query: its tokens of type 1, or its spans for the placed modules.

    vLLM 0.32 takes the first position of type 1, and 0.33 the first one and the one behind the last.
    """
    if second_segments is not None:
        both = zip(second_segments.tolist(), lengths.tolist(), strict=True)
        return [
            {"compressed_token_type_ids": (begin, length) if _TAKES_RANGE else begin} if begin < length else {}
            for begin, length in both
        ]
    if spans is not None:
        bounds = np.split(spans.bounds, np.cumsum(spans.counts)[:-1])
        return [{_SPANS: each} if each.size else {} for each in bounds]
    return [{}] * lengths.size


def given_spans(params: Sequence[Any]) -> Spans | None:
    """The spans that the requests of a step asked for, given their PoolingParams; None: none has any."""
    found = [(each.extra_kwargs or {}).get(_SPANS, _NO_SPANS) for each in params]
    if not any(map(len, found)):
        return None
    return Spans(np.array(list(map(len, found)), np.int32), np.concatenate(found))


def _called(inspect: Callable[[], T]) -> T:
    return inspect()


def leave_dense_out() -> None:
    """Let vLLM load no linear layer after its pooling: it skips what stands between, and activations that it lacks."""
    module: Any = adapters
    module.try_get_dense_modules = _no_modules  # vLLM has no setting for it


def _no_modules(*_: object, **__: object) -> None:
    return None


def device_name(*, on_cpu: bool) -> str:
    """Measured times are valid for this device only."""
    if not on_cpu:
        return str(current_platform.get_device_name())
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'cpu'}, {described_threads(torch.get_num_threads(), os.environ)}"


def runner_of(core: EngineCore) -> Any:
    """The model runner inside an engine that runs in this process, or None if it is elsewhere."""
    worker = getattr(core.model_executor, "driver_worker", None)
    return getattr(getattr(worker, "worker", None), "model_runner", None)


def captured(config: VllmConfig) -> tuple[int, ...]:
    """The sizes of steps that vLLM has captured graphs for; none on a CPU."""
    compilation = config.compilation_config
    if compilation.cudagraph_mode == CUDAGraphMode.NONE:
        return ()
    return tuple(sorted(compilation.cudagraph_capture_sizes or ()))
