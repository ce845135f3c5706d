"""Fuzz the files that a person, or an earlier run, may leave: settings, the environment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest.mock import patch

from aggregator.all_settings import AllSettings
from aggregator.settings import aggregator as aggregator_settings
from k8s.pod.settings import SettingsError, as_text, load
from modelserver.all_settings import AllModelServerSettings
from modelserver.errors import CannotStart
from modelserver.settings import ENV_PREFIX
from tests.fuzz.target import Cut, Target

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108 - memory
_PREFIXES = (aggregator_settings.ENV_PREFIX, ENV_PREFIX)
_NAMES = (
    *("KAFKA__TOPICS", "KAFKA__BOOTSTRAP_SERVERS", "KAFKA__CLIENT__SESSION_TIMEOUT_S", "MODELS", "BATCHING__COALESCE"),
    *("KAFKA", "GRPC__BIND", "ENGINE__KIND", "ENGINE__STEP_TOKENS", "MODEL__PATH", "PROFILE"),
)


def _load(kind: int, file: Path | None, env: dict[str, str]) -> None:
    try:
        with patch.dict(os.environ, {name: value for name, value in env.items() if _may_be_set(name, value)}):
            if kind % 2:
                as_text(load(AllModelServerSettings, _PREFIXES[1], file))
            else:
                as_text(load(AllSettings, _PREFIXES[0], file))
    except (CannotStart, SettingsError):
        return


def _may_be_set(name: str, value: str) -> bool:
    """Whether the system takes it for a variable at all."""
    return "\0" not in name + value and "=" not in name


def check_settings_file(data: bytes) -> None:
    """Which process, then the file."""
    file = _FOLDER / "settings.yaml"
    file.write_bytes(data[1:])
    _load(data[0] if data else 0, file, {})


def check_environment(data: bytes) -> None:
    """Which process, then up to 7 settings: one of the known names or another, and its value."""
    cut = Cut(data)
    kind = cut.byte()
    env: dict[str, str] = {}
    for _ in range(cut.byte() % 8):
        which, value = cut.byte(), cut.field()
        name = _NAMES[which] if which < len(_NAMES) else cut.field().decode("latin-1").upper()
        env[_PREFIXES[kind % 2] + name] = value.decode(errors="surrogateescape")  # as the process finds it
    _load(kind, None, env)


TARGETS = (
    Target("settings_file", check_settings_file),
    Target("settings_environment", check_environment),
)
