"""What a newcomer is told to install is what .ci/install and .ci/run need; what a GPU needs comes first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = re.search(r"UV_VERSION=(\S+)", (ROOT / ".ci" / "install").read_text())


def test_the_readme_names_every_system_package_in_one_line_to_paste() -> None:
    (packages,) = re.findall(r'^readonly PACKAGES="(.*)"', (ROOT / ".ci" / "install").read_text(), re.MULTILINE)
    assert f"    apt-get update && apt-get install -y {packages}\n" in (ROOT / "README.md").read_text()
    (tested,) = re.findall(r"for package in (.*); do", (ROOT / ".ci" / "run").read_text())
    assert set(tested.split()) >= set(packages.split())


class Bare:
    """A copy of the installer whose commands are noted, on a machine without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        for part in (".ci", "requirements"):
            shutil.copytree(ROOT / part, folder / part)
        self._command("bin/cc", "exit 1")
        self._command("bin/apt-get", f'echo "apt-get $*" >>{self.notes}')
        self.takes("true")

    def takes(self, work: str) -> None:
        """Let uv do this whenever it is called."""
        assert UV is not None
        script = f'echo "uv $*" >>{self.notes}\necho "uv {UV.group(1)}"\n[ "$2" != sync ] || {{ {work}; }}'
        self._command(".venv/uv/bin/uv", script)

    def install(self, driver: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        """Run it for the GPU engine with this version of the driver, or for a CPU without one."""
        self._command("bin/nvidia-smi", f"echo {driver}")
        paths = f"{self.folder}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": paths, "ENGINE": "gpu" if driver else "none", "PYTHON": sys.executable}
        command = [str(self.folder / ".ci" / "install"), *options]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def noted(self) -> list[str]:
        """The first words of the commands, in their order."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [" ".join(line.split()[:2]) for line in lines]

    def _command(self, name: str, script: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)


def test_an_old_driver_is_named_before_anything_is_fetched_with_a_way_out(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    ended = bare.install("535.247.01")
    assert ended.returncode == 1
    assert "the NVIDIA driver is version 535.247.01, and the GPU engine needs 580 or newer (CUDA 13)" in ended.stderr
    assert "ENGINE=cpu" in ended.stderr
    assert bare.noted() == []


@pytest.mark.privileged  # only root installs packages
def test_for_a_gpu_the_compiler_and_headers_come_before_python_packages(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    ended = bare.install("580.95.05")
    assert ended.returncode == 0, ended.stderr
    listed = (ROOT / "requirements" / "system-gpu.txt").read_text().split()
    assert "libpython3-dev" in listed
    assert f"installing of Debian's packages: {' '.join(listed)}" in ended.stderr
    assert bare.noted()[:2] == ["apt-get update", "apt-get install"]
    assert bare.noted()[-2:] == ["uv pip", "uv pip"]


def lines(*names: str) -> set[str]:
    return {line for name in names for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()}


def test_both_sizes_are_told_first_and_then_only_what_is_added(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    (always,) = re.findall(r"^lists\+=\((.*)\)$", (ROOT / ".ci/install").read_text(encoding="utf-8"), re.MULTILINE)
    base = lines("modelserver", *re.findall(r"requirements/(\w+)\.txt", always))
    first = bare.install()
    assert f"installing {len(base)} packages for no engine (the first time some 3.3 GB to fetch" in first.stderr
    assert "6.8 GB on disk)" in first.stderr
    again = bare.install()
    assert "installing" not in again.stderr, "nothing changed"
    more = bare.install("", "--generate")
    assert f"installing {len(lines('generate') - base)} more packages" in more.stderr


def test_an_installation_that_takes_long_says_how_far_it_is(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    script = tmp_path / ".ci" / "install"
    script.write_text(script.read_text().replace("EVERY_S=5", "EVERY_S=0.02"))
    bare.takes("until grep -q still log; do true; done")
    log = tmp_path / "log"
    with log.open("w") as output:
        environment = {**os.environ, "ENGINE": "none", "PYTHON": sys.executable}
        done = subprocess.run([script], env=environment, stderr=output, check=False, timeout=60)
    assert done.returncode == 0
    assert re.search(r"still installing: (\d+\.\d GB written, )?\d+ s\n", log.read_text())


def test_an_installation_that_fails_ends_with_that(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    bare.takes("exit 7")
    assert bare.install().returncode != 0
    assert not (tmp_path / ".venv" / "installed").exists()


def test_the_image_installs_the_same_system_packages() -> None:
    dockerfile = (ROOT / "modelserver" / "Dockerfile").read_text()
    for engine in ("cpu", "gpu"):
        assert (
            f"xargs apt-get install --yes --no-install-recommends </opt/requirements/system-{engine}.txt" in dockerfile
        )
