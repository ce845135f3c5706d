"""The processes of a stack, as they are started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from loadtest.stack.service import Service


def test_what_a_stack_starts_keeps_its_bytecode_where_others_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    service = Service("zen", "this", {}, 1, tmp_path / "log")
    service.launch()
    while service.exit_code is None:
        time.sleep(0.01)
    assert "Explicit is better than implicit." in (tmp_path / "log").read_text()
    assert list(tmp_path.glob("bytecode/**/this.*.pyc"))
