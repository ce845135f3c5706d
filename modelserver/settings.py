"""All configuration of the model server: environment over file over default, unknown names refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from typing_extensions import override

from modelserver.errors import CannotStart
from modelserver.model_files import DEFAULT_MODEL_NAME
from modelserver.scheduler.memory import MemoryForm

ENV_PREFIX = "TOKENBATCH_MODELSERVER_"
_SERVICE_LINK = re.compile(f"^{ENV_PREFIX}(SERVICE_(HOST|PORT)|PORT)(_|$)")
"""What Kubernetes puts into a pod's environment for a Service of the same name."""


class Group(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(Group):
    """What is served."""

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
    task: Literal["auto", "embed", "generate"] = Field(
        default="auto",
        description="auto: generate for a causal language model without the modules.json of an embedding model, else"
        " embed",
    )


class GenerationSettings(Group):
    """A model that generates."""

    time_per_output_token_s: PositiveFloat = Field(
        default=0.1,
        description="target for the time between two tokens of one text; prompts are computed in parts to keep it",
    )
    memory_limit: MemoryForm = Field(
        default=MemoryForm.OFF,
        description="how many sequences run at once. off: as many as vLLM admits; length and occupancy: as many as"
        " rarely overflow the KV cache, predicted from the final lengths of earlier sequences, or from what they held"
        " while they ran",
    )


class EngineSettings(Group):
    """How it is computed."""

    kind: Literal["auto", "direct", "core", "synthetic"] = Field(
        default="auto",
        description="auto: direct if its vectors agree with core's, else core; direct, core: that one, or the start"
        " fails; synthetic: no model at all, for load tests",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: bfloat16 if the hardware multiplies it, else float32"
    )
    step_tokens: PositiveInt | None = Field(
        default=None,
        description="most tokens of one engine step; empty: 4096 on a CPU, 16384 on a GPU; for generation 2048, 8192",
    )
    vllm_options: dict[str, Any] = Field(
        default={},
        description="further arguments of vLLM's EngineArgs, such as gpu_memory_utilization and trust_remote_code",
    )


class GrpcSettings(Group):
    """The gRPC port."""

    bind: str = Field(default="0.0.0.0:50061", description="host:port; port 0 picks a free one")
    drain_timeout_s: PositiveFloat = Field(default=20.0, description="time from SIGTERM to finish the accepted batches")


class ProfileSettings(Group):
    """The saturation profile: how step time depends on tokens."""

    enabled: bool = True
    file: Path | None = None
    cache: Path = Path("~/.cache/tokenbatch/profiles")
    budget_s: PositiveFloat = 15.0


class SyntheticSettings(Group):
    """The synthetic engine (engine.kind=synthetic), for load tests and fault tests."""

    fixed_s: NonNegativeFloat = 0.002
    per_token_s: NonNegativeFloat = 0.00001
    dimensions: PositiveInt | None = None
    poison_token_id: NonNegativeInt | None = None
    poison_mode: Literal["error", "exit"] = "error"


class TelemetrySettings(Group):
    """Logs, metrics, health. OTLP is set by OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT and others."""

    metrics_bind: str = Field(
        default="0.0.0.0:9465", description="host:port of /metrics, /livez and /readyz; port 0 picks a free one"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the lowest level that is logged"
    )


class ModelServerSettings(Group):
    """Everything the model server can be told."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    generation: GenerationSettings = GenerationSettings()
    grpc: GrpcSettings = GrpcSettings()
    profile: ProfileSettings = Field(
        default=ProfileSettings(),
        description="the saturation profile. enabled: measure it at the start; file: a profile that was measured"
        " before, for this model and device; cache: folder of the profiles that were measured here; budget_s: time for"
        " the measurement",
    )
    synthetic: SyntheticSettings = Field(
        default=SyntheticSettings(),
        description="for engine.kind synthetic, which computes nothing. fixed_s and per_token_s: time of a step;"
        " dimensions (empty: as the model's files say); poison_token_id: a token that makes a step fail;"
        " poison_mode: error or exit",
    )
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def served_name(self) -> str:
        """The name that requests must use."""
        if self.model.name:
            return self.model.name
        return self.model.path.rstrip("/").rpartition("/")[2] or DEFAULT_MODEL_NAME


def load(file: Path | None = None, *, bind: str | None = None) -> ModelServerSettings:
    """Settings from `bind` over the environment over the YAML `file` over defaults.

    An empty variable counts as not set. Raises CannotStart with a line per problem: an unknown name (with the nearest
    known one), a value that does not fit, a file that cannot be read.
    """

    class Loaded(ModelServerSettings, BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True, yaml_file=file
        )

        @classmethod
        @override
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)

    if file is not None and not file.is_file():
        raise CannotStart(f"{file}: there is no such file")
    if unknown := "\n".join(_unknown_variables()):
        raise CannotStart(unknown)
    try:
        given: dict[str, Any] = {"grpc": {"bind": bind}} if bind else {}
        loaded = Loaded(**given)
    except ValidationError as error:
        raise CannotStart("\n".join(map(_problem, error.errors()))) from error
    except Exception as error:  # what YAML and JSON raise, down to a date in month 13
        raise CannotStart(f"{file or 'the environment'}: {error} {error.__cause__ or ''}".rstrip()) from error
    return ModelServerSettings.model_validate(loaded.model_dump())


def as_text(settings: ModelServerSettings) -> str:
    """The settings in force as YAML."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def help_text() -> str:
    """Every setting, for `--help`; a group that has a description of its own is one setting, a mapping."""
    lines = ["Settings come from the environment, then from the file of --config (YAML), then from these defaults."]
    for path, field, default in _settings():
        choices = "|".join(map(str, get_args(field.annotation))) if "Literal" in str(field.annotation) else ""
        shown = (
            default.model_dump_json() if isinstance(default, Group) else "empty" if default in (None, "") else default
        )
        lines.append(f"{_variable(path)}  {choices and f'<{choices}>  '}[default {shown}]")
        lines.append(fill(field.description or "", 110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines) + "\n"


def _settings() -> Iterator[tuple[tuple[str, ...], FieldInfo, Any]]:
    """Path, field and default of every setting."""
    for group, outer in ModelServerSettings.model_fields.items():
        if outer.description:
            yield (group,), outer, outer.default
            continue
        for name, field in type(outer.default).model_fields.items():
            yield (group, name), field, field.default


def _names() -> Iterator[tuple[str, ...]]:
    """Every name that a setting may be given by, those of groups as a whole included."""
    for group, outer in ModelServerSettings.model_fields.items():
        yield (group,)
        yield from ((group, name) for name in type(outer.default).model_fields)


def _variable(path: tuple[str, ...]) -> str:
    return ENV_PREFIX + "__".join(path).upper()


def _unknown_variables() -> Iterator[str]:
    known = {_variable(path) for path in _names()}
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known and not _SERVICE_LINK.search(name):
            nearest = get_close_matches(name, known, n=1)
            yield f"{name} is not a setting" + (f": did you mean {nearest[0]}?" if nearest else "")


def _problem(error: ErrorDetails) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg']}"
    nearest = get_close_matches(key, [".".join(path) for path in _names()], n=1)
    return f"{key} is not a setting" + (f": did you mean {nearest[0]}?" if nearest else "; --help lists all")
