"""Drive vLLM's EngineCore in process, one batch per step: the general way, right for every pooling model."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import set_num_threads  # vLLM replaces torch.set_num_threads by one that only warns
from transformers import CONFIG_MAPPING, AutoConfig
from vllm import ModelRegistry
from vllm import __version__ as vllm_version
from vllm.config import PoolerConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.pooling_params import PoolingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.request import Request

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Scoring, Spans, StepThreads, Task
from modelserver.engines.model_config import (
    VLLMS_ALONE,
    OwnClasses,
    activated,
    capture_sizes,
    hf_overrides,
    known_type,
    refusal,
)
from modelserver.engines.modules import VectorModules, place_modules
from modelserver.engines.pooling import Modules, Pooling
from modelserver.engines.vllm_internals import (
    captured,
    device_name,
    extra_kwargs,
    inspect_classes_in_process,
    leave_dense_out,
    runner_of,
)
from modelserver.errors import CannotStart, EngineBroken, StepFailed, device_errors
from modelserver.model_files import position_rows

_log = logging.getLogger(__name__)

_TOKENS_PER_QUERY = 3
"""Tokens of the shortest query, two special tokens around one: bounds the queries of a step."""
_CACHE_SHARE, _ENCODER_SHARE = 0.8, 0.1
"""The share of the memory for vLLM, unless set in `engine.vllm_options`: it must be free at the start. The KV cache,
which encoders do not have, gets what the weights leave."""
_CPU_BLOCK_SIZE = 32
"""Tokens of a block of the KV cache; on a GPU vLLM's attention kernel decides."""
_VLLMS: Mapping[Pooling, Any] = {Pooling.CLS: "CLS", Pooling.LAST: "LAST", Pooling.MEAN: "MEAN"}
_MULTIPLIES_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of instructions of Intel, AMD and ARM; without them bfloat16 is several times slower than float32."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model; None lets the engine choose by the device (CPU or GPU).

    `model_tokens` is the longest input that the model's files speak of. `graphs`: capture CUDA graphs, on a GPU.
    `gpu_share`: of the GPU's memory.
    `modules`: the modules after the transformer of a model that only embeds; None: as vLLM's class does.
    `scoring`: of a model that ranks or classifies. `overrides`: entries of config.json to replace for vLLM.
    `classes`: of models beside vLLM's.
    """

    model_path: str
    dtype: str | None
    model_tokens: int
    max_input_tokens: int | None
    step_tokens: int | None
    options: Mapping[str, Any]
    graphs: bool = True
    gpu_share: float = 1.0
    modules: Modules | None = None
    scoring: Scoring | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    classes: OwnClasses = VLLMS_ALONE


class CoreEngine:
    """The batch is added to an empty scheduler whole, then stepped: one batch, one step."""

    def __init__(
        self,
        core: EngineCore,
        longest: int | None = None,
        modules: Modules | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        """Take over a loaded EngineCore on the thread that built it. Raises CannotStart for another kind of model.

        `longest`: tokens of the longest input, where that is less than what vLLM reads in the model's files.
        """
        self.core = core
        self.config = core.vllm_config
        _check_kind(self.config, scoring)
        self.modules = _placed(core, modules) if scoring is None else None
        self.threads = StepThreads(torch.get_num_threads(), set_num_threads)
        self._names = count()
        self._params = PoolingParams(task="embed" if scoring is None else "classify", use_activation=False)
        self._in_flight: list[str] = []
        facts, (step_tokens, step_queries) = facts_of(core), _step_capacity(core)
        self.facts = replace(
            facts,
            tasks=frozenset((Task.EMBED if scoring is None else scoring.task,)),
            scoring=scoring,
            pools_spans=self.modules is not None and self.modules.pools_spans,
            rectified=self.modules is not None and self.modules.rectified,
            operations_per_token=_operations(core),
            max_input_tokens=min(facts.max_input_tokens, longest or facts.max_input_tokens),
            step_token_capacity=step_tokens,
            step_query_capacity=step_queries,
            capture_sizes=captured(core.vllm_config),
        )
        dimensions = self.prepare(np.ones(1, np.int32), np.ones(1, np.int32)).execute().shape[1]
        if scoring is not None and dimensions != len(scoring.labels):
            raise CannotStart(
                f"the model gives {dimensions} scores, and config.json in {self.config.model_config.model} has"
                f" {len(scoring.labels)} labels: {', '.join(scoring.labels)}"
            )
        self.facts = replace(self.facts, dimensions=dimensions)

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> CoreStep:
        """Make one vLLM request per query."""
        ids = token_ids.tolist()
        bounds = [0, *np.cumsum(lengths).tolist()]
        params = [
            PoolingParams(task=self._params.task, use_activation=False, extra_kwargs=dict(extra))
            if extra
            else self._params
            for extra in extra_kwargs(lengths, second_segments, spans)
        ]
        now_s = time.time()
        requests = [
            Request(
                request_id=str(next(self._names)),
                prompt_token_ids=ids[start:end],
                sampling_params=None,
                pooling_params=each,
                arrival_time=now_s,
            )
            for each, (start, end) in zip(params, pairwise(bounds), strict=True)
        ]
        return CoreStep(self, requests, len(ids))

    def execute(self, requests: list[Request]) -> Matrix:
        """Run one step; a batch that needs more than one (a bug, or a setting outside its bounds) is an error."""
        self._in_flight = [request.request_id for request in requests]
        for request in requests:
            self.core.scheduler.add_request(request)
        with device_errors():
            outputs, _ = self.core.step()
        pooled = {output.request_id: output.pooling_output for output in outputs[0].outputs} if outputs else {}
        vectors = [vector for name in self._in_flight if (vector := pooled.get(name)) is not None]
        if len(vectors) != len(requests):
            raise StepFailed(f"{len(requests) - len(vectors)} of {len(requests)} queries missed the step")
        self._in_flight = []
        matrix: Matrix = torch.cat([torch.atleast_2d(each) for each in vectors]).to(torch.float32).numpy()
        scoring = self.facts.scoring
        return matrix if scoring is None else activated(matrix, scoring.activation)

    def recover(self) -> None:
        """Abort the requests that a failed step left, and check that a small batch still computes."""
        try:
            self.core.abort_requests(self._in_flight)
            self.core.step()  # a step without work, in which the runner forgets the aborted
            self._in_flight = []
            probe = self.prepare(np.full(4, 1, np.int32), np.array([1, 3], np.int32)).execute()
        except Exception as error:
            raise EngineBroken(f"the engine does not recover: {type(error).__name__}: {error}") from error
        if not np.isfinite(probe).all():
            raise EngineBroken("the engine does not recover: its vectors are not finite")

    def close(self) -> None:
        """Free the model and vLLM's process groups."""
        self.core.shutdown()
        del self.core, self.config, self.modules  # a reference to the engine does not keep the weights


@dataclass(frozen=True, slots=True)
class CoreStep:
    """The requests of one step."""

    engine: CoreEngine
    requests: list[Request]
    tokens: int

    def execute(self) -> Matrix:
        with self.engine.threads.of(self.tokens):
            return self.engine.execute(self.requests)


def load(options: LoadOptions) -> CoreEngine:
    """Load a model into vLLM; the calling thread becomes the engine's."""
    config = check(options)
    leave_dense_out()
    longest = options.max_input_tokens or options.model_tokens
    return CoreEngine(_started(config), longest, options.modules, options.scoring)


def check(options: LoadOptions) -> VllmConfig:
    """The configuration of vLLM for a model that embeds or scores.

    Raises CannotStart, and what vLLM raises, for another one.
    """
    config = engine_config(options)
    model = config.model_config
    _check_kind(config, options.scoring)
    if options.modules is not None:
        VectorModules(options.modules)
        if "pooler_config" in options.options:
            raise CannotStart(
                "engine.vllm_options has pooler_config, and the files of the model say how it pools: change them, in"
                f" {model.model}"
            )
    return config


def _operations(core: EngineCore) -> float:
    """Two for each weight of a matrix that a token is multiplied with; 0 if the model is in other processes."""
    runner = runner_of(core)
    named = [] if runner is None else runner.model.named_parameters()
    weights: int = sum(each.numel() for name, each in named if each.ndim > 1 and "embed" not in name)
    return 2.0 * weights


def _check_kind(config: VllmConfig, scoring: Scoring | None) -> None:
    model = config.model_config
    wanted = "bi-encoder" if scoring is None else "cross-encoder"
    if model.runner_type != "pooling" or model.score_type != wanted:
        kind = "embedding model" if scoring is None else "model with a classifier"
        raise CannotStart(f"{model.model} is no {kind} for vLLM {vllm_version}: set model.task to auto")


def _placed(core: EngineCore, modules: Modules | None) -> VectorModules | None:
    runner = runner_of(core)
    if runner is not None:
        return place_modules(runner.model, modules)
    if modules is not None and modules.needs_place:
        raise CannotStart(
            "the model runs in other processes, where no modules after the transformer are computed but vLLM's pooling"
            " by the last token, the mean or the first token: leave tensor_parallel_size at 1"
        )
    return None


def engine_config(options: LoadOptions) -> VllmConfig:
    """The configuration of vLLM for a model that embeds or scores."""
    step_tokens = options.step_tokens or (4096 if on_cpu() else 16384)
    config = json.loads(Path(options.model_path, "config.json").read_bytes())
    if not options.options.get("trust_remote_code"):
        _replace_code(config, options.model_path)
    classes, overrides = options.classes, hf_overrides(config, options.scoring)
    if (served_as := classes.served_as(config)) is not None:
        overrides["architectures"] = [served_as]
    overrides |= options.overrides
    for architecture, place in classes.places.items():
        ModelRegistry.register_model(architecture, place)
    return _engine_config(
        options,
        runner="pooling",
        pooler_config=_pooler_config(options.modules),
        hf_overrides=overrides,
        enforce_eager=not classes.eager.isdisjoint(overrides.get("architectures", ())) or on_cpu(),
        max_model_len=_max_model_len(options, step_tokens, config),
        max_num_batched_tokens=step_tokens,
        max_num_seqs=math.ceil(step_tokens / _TOKENS_PER_QUERY),
        enable_prefix_caching=False,
        **_graphs(options, step_tokens),
    )


def _pooler_config(modules: Modules | None) -> PoolerConfig | None:
    """The pooling in vLLM's words: it does not read every layout, and pools itself where our modules cannot."""
    if modules is None:
        return None
    return PoolerConfig(seq_pooling_type=_VLLMS.get(modules.poolings[0], "MEAN"))


def _replace_code(config: Mapping[str, Any], path: str) -> None:
    """Let transformers read a config.json whose type is defined by published code, which is not run.

    Raises CannotStart if the model needs that code.
    """
    if reason := refusal(config):
        raise CannotStart(f"{path} cannot be served: {reason}")
    if known := known_type(config):
        name: str = config["model_type"]
        AutoConfig.register(name, type("Published", (CONFIG_MAPPING[known],), {"model_type": name}), exist_ok=True)


def _graphs(options: LoadOptions, step_tokens: int) -> dict[str, Any]:
    """Which CUDA graphs to capture, unless the options say it; without effect where nothing is compiled."""
    if not options.options.keys().isdisjoint(("compilation_config", "cudagraph_capture_sizes")):
        return {}
    if not options.graphs:
        return {"compilation_config": {"cudagraph_mode": "NONE"}}
    return {"cudagraph_capture_sizes": list(capture_sizes(step_tokens))}


def on_cpu() -> bool:
    """Whether this build of vLLM computes on the CPU."""
    return bool(current_platform.is_cpu())


def chosen_dtype() -> str:
    """On a GPU vLLM's own choice; on a CPU bfloat16 where it multiplies that, else float32 (several times faster)."""
    if not on_cpu():
        return "auto"
    able = torch.cpu.get_capabilities()
    return "bfloat16" if any(able.get(name) for name in _MULTIPLIES_BF16) else "float32"


def engine_core(options: LoadOptions, **arguments: Any) -> EngineCore:
    """A model loaded by vLLM on the calling thread, with `arguments` of EngineArgs beside those of every task."""
    return _started(_engine_config(options, **arguments))


def _started(config: VllmConfig) -> EngineCore:
    return EngineCore(config, Executor.get_class(config), log_stats=False)


def _engine_config(options: LoadOptions, **arguments: Any) -> VllmConfig:
    cpu = on_cpu()
    common: dict[str, Any] = {
        "model": options.model_path,
        "dtype": options.dtype or chosen_dtype(),
        "enforce_eager": cpu,
        "gpu_memory_utilization": _CACHE_SHARE * options.gpu_share,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "async_scheduling": False,
        "use_tqdm_on_load": False,
    }
    if cpu:
        inspect_classes_in_process()
        common["block_size"] = _CPU_BLOCK_SIZE
    given = EngineArgs(**(common | arguments | dict(options.options)))
    config = given.create_engine_config(UsageContext.ENGINE_CONTEXT)
    if config.model_config.attn_type == "encoder_only" and "gpu_memory_utilization" not in options.options:
        config.cache_config.gpu_memory_utilization = min(_ENCODER_SHARE, _CACHE_SHARE * options.gpu_share)
    return config


def _max_model_len(options: LoadOptions, step_tokens: int, config: Mapping[str, Any]) -> int | None:
    """The longest input to take; None: as vLLM reads the model's files. A step must hold it whole.

    Raises CannotStart for a setting beyond the table of positions.
    """
    if options.max_input_tokens is not None:
        rows = position_rows(config)
        if rows is not None and options.max_input_tokens > rows:
            raise CannotStart(
                f"model.max_input_tokens is {options.max_input_tokens}, and {options.model_path} has positions for"
                f" {rows} tokens: set it to at most {rows}"
            )
        return options.max_input_tokens
    if options.model_tokens <= step_tokens:
        limits = options.model_tokens <= (config.get("max_position_embeddings") or 0)
        return options.model_tokens if limits else None
    _log.warning(
        "inputs are limited to one step", extra={"model_tokens": options.model_tokens, "step_tokens": step_tokens}
    )
    return step_tokens


def facts_of(core: EngineCore) -> EngineFacts:
    config = core.vllm_config
    return EngineFacts(
        kind="core",
        version=vllm_version,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        device=device_name(on_cpu=on_cpu()),
        on_cpu=on_cpu(),
        dimensions=0,
        max_input_tokens=config.model_config.max_model_len,
        vocabulary_size=config.model_config.get_vocab_size(),
        step_token_capacity=config.scheduler_config.max_num_batched_tokens,
        step_query_capacity=config.scheduler_config.max_num_seqs,
    )


def _step_capacity(core: EngineCore) -> tuple[int, int]:
    """Tokens and queries that one step surely holds, whole cache blocks charged where the model has a cache."""
    config = core.vllm_config
    step_tokens = config.scheduler_config.max_num_batched_tokens
    step_queries = config.scheduler_config.max_num_seqs
    if core.get_kv_cache_group_metadata():
        blocks, block_size = config.cache_config.num_gpu_blocks or 0, config.cache_config.block_size
        # Each query may waste all but one slot of its last block; block 0 is vLLM's own.
        slots = (blocks - 1) * block_size
        step_tokens = min(step_tokens, slots // 2)
        step_queries = min(step_queries, (slots - step_tokens) // (block_size - 1))
    if step_queries < 1 or step_tokens < config.model_config.max_model_len:
        raise CannotStart(
            f"one step holds {step_tokens} tokens, but the model takes {config.model_config.max_model_len}:"
            " give it more memory, or set MODEL__MAX_INPUT_TOKENS lower or ENGINE__STEP_TOKENS higher"
        )
    return step_tokens, step_queries
