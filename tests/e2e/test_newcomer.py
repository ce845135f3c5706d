"""`.ci/newcomer`, in which `.ci/run` follows README, finds what README's line lacks, for a CPU and for a GPU."""

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.privileged, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

WITH_DRIVER = """
mkdir -p /tmp/driver
printf '#!/bin/sh\\necho {version}\\n' >/tmp/driver/nvidia-smi
chmod +x /tmp/driver/nvidia-smi
PATH=/tmp/driver:$PATH ENGINE=gpu .ci/install
"""

Newcomer = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def newcomer(tmp_path: Path) -> Generator[Newcomer]:
    """Runs the script, on a machine of this test."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "NEWCOMER_DIR": str(tmp_path / "machine")}
        command = [str(ROOT / ".ci" / "newcomer"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    if (checked := run("check")).returncode:
        pytest.skip(checked.stderr)
    yield run
    assert run("remove").returncode == 0


def test_what_a_bare_machine_lacks_is_named_before_anything_is_fetched(tmp_path: Path, newcomer: Newcomer) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count(" libnuma1 ") == 1
    (tmp_path / "README.md").write_text(readme.replace(" libnuma1 ", " "))
    installed = newcomer("install", str(tmp_path / "README.md"))
    assert installed.returncode == 0, installed.stderr

    rights = newcomer("run", "test $(id -u) -ne 0 && ! touch /etc/x && ! command -v cc c++ g++ gcc sudo")
    assert rights.returncode == 0, rights.stderr
    up = newcomer("run", "make up ARGS=--exit")
    assert up.returncode != 0
    assert "the system package libnuma1 is missing" in up.stderr

    # The same machine with a GPU: the driver is asked for first, then the compiler, and nothing is fetched before.
    old = newcomer("run", WITH_DRIVER.format(version="535.183.01"))
    assert old.returncode != 0
    assert "the NVIDIA driver is version 535.183.01, and the GPU engine needs 580 or newer" in old.stderr
    assert "ENGINE=cpu" in old.stderr
    new = newcomer("run", WITH_DRIVER.format(version="580.65.06"))
    assert new.returncode != 0
    assert "the system package gcc or libc6-dev or libnuma1 or libpython3-dev is missing" in new.stderr
    without = newcomer("run", "ENGINE=gpu .ci/install")
    assert without.stderr.index("no NVIDIA driver answers here") < without.stderr.index("is missing")
    assert newcomer("run", "test ! -e .venv/uv").returncode == 0
