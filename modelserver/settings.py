"""The settings of the model server's core; `modelserver/all_settings.py` adds those of wings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from k8s.pod.addresses import Bind
from k8s.pod.settings import Group
from k8s.pod.telemetry import TelemetrySettings
from modelserver.model_files import DEFAULT_MODEL_NAME

ENV_PREFIX = "TOKENBATCH_MODELSERVER_"

G = TypeVar("G", bound=Group)


class ModelSettings(Group):
    """The model."""

    path: str = Field(default="", description="model folder or Hugging Face hub name; empty: the bundled MiniLM")
    name: str = Field(
        default="",
        description=f"the name it is served under; empty: {DEFAULT_MODEL_NAME} for MiniLM, else the path's last part",
    )
    revision: str = Field(
        default="",
        description="revision on the hub, or the name of a local model's revision; empty: the hub's commit, or a"
        " digest of the files",
    )
    max_input_tokens: PositiveInt | None = Field(
        default=None,
        description="tokens of the longest input; empty: the model's own limit, for embeddings at most what one step"
        " holds, for generation on a CPU at most 2048",
    )
    task: Literal["auto", "embed", "generate", "both", "rank", "classify", "multi_vector", "sparse"] = Field(
        default="auto",
        description="both: embed and generate in the same engine steps. rank: one score of a query and a document;"
        " classify: one score per label. auto: rank for a classifier (…ForSequenceClassification) of one label,"
        " classify for one of several; generate for a causal language model;"
        " both for one whose files say how it embeds (modules.json, 1_Pooling) and generates (generation_config.json),"
        " or with an adapter; else embed",
    )
    adapter: str = Field(
        default="",
        description="task both: folder or Hugging Face hub name of a LoRA adapter to embed through; pooling and prompts"
        " are as its own files say; empty: embed with the model itself",
    )


class EngineSettings(Group):
    """How it is computed."""

    kind: Literal["auto", "direct", "core", "synthetic"] = Field(
        default="auto",
        description="auto: direct if its vectors agree with core's, else core, and core for causal models on a GPU;"
        " direct, core: that one, or the start fails; synthetic: no model at all, for load tests",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="auto: on a GPU as vLLM's auto (float16 for most embedding models); on a CPU bfloat16 if the"
        " hardware multiplies it, else float32",
    )
    step_tokens: PositiveInt | None = Field(
        default=None,
        description="most tokens of one engine step; empty: 4096 on a CPU, 16384 on a GPU; for generation 2048, 8192",
    )
    gpu_share: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="this server's share of the GPU's memory, where several servers have one GPU between them",
    )
    peak_tflops: PositiveFloat | None = Field(
        default=None,
        description="what the device computes at most, in 1e12 dense matrix operations a second of this dtype, as its"
        " data sheet says: then tokenbatch.engine.mfu tells which share of it steps use",
    )
    graphs: Literal["auto", "off"] = Field(
        default="off",
        description="auto: the direct engine on an NVIDIA GPU computes steps of up to 8192 tokens and short inputs by"
        " CUDA graphs of its whole forward pass, each of which must agree with the engine without it; off: it does"
        " not, because no GPU has run these graphs yet",
    )
    vllm_options: dict[str, Any] = Field(
        default={},
        description="further arguments of vLLM's EngineArgs, such as gpu_memory_utilization and trust_remote_code",
    )


class GrpcSettings(Group):
    """The gRPC port."""

    bind: Bind = Field(default="0.0.0.0:50061", description="host:port; port 0 picks a free one")
    drain_timeout_s: ClassVar[float] = 20.0
    """Time to finish accepted batches after SIGTERM; with the pause before, it fits Kubernetes' grace period."""
    most_connections: ClassVar[int] = 512
    """Each aggregator has one."""


class SyntheticSettings(Group):
    """The synthetic engine (engine.kind=synthetic), for load tests and fault tests."""

    fixed_s: NonNegativeFloat = 0.002
    per_token_s: NonNegativeFloat = 0.00001
    dimensions: PositiveInt | None = None
    load_s: NonNegativeFloat = 0.0
    close_s: NonNegativeFloat = 0.0
    poison_token_id: NonNegativeInt | None = None
    poison_above_tokens: NonNegativeInt | None = None
    poison_share: float = Field(default=0.0, ge=0.0, le=1.0)
    poison_while: Path | None = None
    poison_mode: Literal["error", "exit", "break", "stall", "hang", "lose", "nan", "nan_row", "zeros"] = "error"


def _of_vllm(name: str) -> str:
    return f'it is vLLM\'s: give it in engine.vllm_options, as {{"{name}": …}}'


_VLLM_OPTIONS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization"),
    *("trust_remote_code", "quantization", "enforce_eager", "max_num_seqs", "max_logprobs", "kv_cache_dtype"),
    *("enable_prefix_caching", "enable_chunked_prefill", "block_size", "swap_space", "seed", "hf_overrides"),
    *("rope_scaling", "load_format", "download_dir", "tokenizer", "tokenizer_mode", "cpu_offload_gb"),
    *("override_pooler_config", "pooler_config", "compilation_config", "attention_backend", "device"),
)


class ModelServerSettings(Group):
    """The settings of the model server, without those of wings."""

    other_names: ClassVar[Mapping[str, str]] = {
        **{name: _of_vllm(name) for name in _VLLM_OPTIONS},
        "max_model_len": "model.max_input_tokens",
        "max_input_length": "model.max_input_tokens",
        "max_seq_length": "model.max_input_tokens",
        "max_batch_tokens": "engine.step_tokens",
        "max_num_batched_tokens": "engine.step_tokens",
        "model_id": "model.path",
        "id": "model.path",
        "served_model_name": "model.name",
        "runner": "model.task",
        "convert": "model.task",
        "pooling": "the model's own files say how it pools: leave it out",
        "lora_modules": "model.adapter",
        "port": "grpc.bind",
        "host": "grpc.bind",
        "hostname": "grpc.bind",
        "api_key": "model servers authenticate nobody: callers reach the aggregator",
        "otlp_endpoint": "set OTEL_EXPORTER_OTLP_ENDPOINT",
        "hf_token": "set HF_TOKEN",
    }

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    grpc: GrpcSettings = GrpcSettings()
    synthetic: SyntheticSettings = Field(
        default=SyntheticSettings(),
        description="for engine.kind synthetic, which computes nothing. fixed_s and per_token_s: time of a step;"
        " dimensions (empty: as the model's files say); load_s and close_s: time of loading and closing;"
        " poison_token_id: a token that makes a step fail; poison_above_tokens: so do more tokens than this;"
        " poison_share: the share of steps that fail by chance; poison_while: a file, steps fail while it exists;"
        " poison_mode: error (the engine recovers), break (it must be"
        " rebuilt), stall (for 3 s), hang, lose (as when the GPU is lost), exit (of the process), or a lie: nan, zeros"
        " (of every row, or of those with the token) or nan_row (of one row)",
    )
    telemetry: TelemetrySettings = TelemetrySettings(metrics_bind="0.0.0.0:9465")

    def group(self, of: type[G]) -> G | None:
        """The group of this type, if a wing brought it."""
        return next((group for _, group in self if isinstance(group, of)), None)

    @property
    def served_name(self) -> str:
        """The name that requests must use."""
        if self.model.name:
            return self.model.name
        return self.model.path.rstrip("/").rpartition("/")[2] or DEFAULT_MODEL_NAME
