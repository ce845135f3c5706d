"""Programs of benchmarks that compute with an engine take all settings of a model server from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.asked import asked
from loadtest.bench.gpu.engines import PREFIX
from loadtest.stack.instant_modelserver import tokenizer_folder


def test_an_engine_alone_starts_with_the_settings_of_wings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ENGINE__KIND": "synthetic",
        "MODEL__PATH": tokenizer_folder(),
        "PROFILE__ENABLED": False,
    }.items():
        monkeypatch.setenv(PREFIX + name, str(value))
    command = ["loadtest.bench.programs.engine_forward", "--queries", "2", "--tokens", "3"]
    with asked(command, tmp_path / "log") as engine:
        assert engine.engine.startswith("synthetic engine")
        assert engine.seconds(2) > 0.0
