"""SIGTERM while a process still imports what it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = pytest.mark.parametrize("module", ["aggregator", "modelserver"])
FIRST_IMPORT = """
import os, signal, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {first!r}:
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Slow())
"""
"""Imports last ten minutes from the first one on that is not the standard library's."""
AS_FIRST = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
FIRST = {"aggregator": "uvloop", "modelserver": "uvloop"}


@MODULES
@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.privileged, id="as process 1"), False])
def test_sigterm_during_imports_ends_a_process(tmp_path: Path, module: str, first: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(FIRST_IMPORT.format(first=FIRST[module]))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    command = [*(AS_FIRST if first else ()), sys.executable, "-m", module]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            target = int(child_of(process.pid)) if first else process.pid
            os.kill(target, signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


def child_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
