"""What a release is made with: images, the packaged chart, and the addresses that a fork fills in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.package import packaged
from tests.chart.rendering import CHART, ROOT, render

VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"])
OPEN = re.compile("REPOSITORY-ADDRESS|SECURITY-ADDRESS")
FILLED = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/images.md", ".github")


def images(folder: Path, *builders: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run .ci/images where these builders are on PATH, and no others; how it ended, and what it called."""
    log = folder / "calls"
    log.write_text("")
    for name in ("bash", "dirname", "git", "sed"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name in builders:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n')
        (folder / name).chmod(0o755)
    env = {"PATH": str(folder), "HOME": os.environ.get("HOME", "/"), **variables}
    done = subprocess.run([ROOT / ".ci/images"], env=env, check=False, capture_output=True, text=True)
    return done, log.read_text().splitlines()


@pytest.mark.parametrize("builder", ["docker", "podman", "buildah"])
def test_images_are_built_by_the_builder_that_is_there(tmp_path: Path, builder: str) -> None:
    done, calls = images(tmp_path, builder)
    assert done.returncode == 0, done.stderr
    names = [re.findall(r"--tag (\S+)", call)[0] for call in calls]
    servers = f"tokenbatch/modelserver:{VERSION}"
    assert names == [f"tokenbatch/aggregator:{VERSION}", servers, f"{servers}-cpu"]
    assert all(call.startswith(f"{builder} build ") for call in calls)


def test_images_are_pushed_where_that_is_asked_for(tmp_path: Path) -> None:
    done, calls = images(tmp_path, "podman", "buildah", REGISTRY="reg.example/team", PUSH="1", TARGETS="aggregator")
    assert done.returncode == 0, done.stderr
    image = f"reg.example/team/tokenbatch/aggregator:{VERSION}"
    assert [call.split()[:2] for call in calls] == [["podman", "build"], ["podman", "push"]]
    assert all(image in call for call in calls)


@pytest.mark.parametrize(
    ("builders", "variables", "says"),
    [
        ((), {}, "neither docker, podman nor buildah"),
        (("docker",), {"PUSH": "1"}, "PUSH=1 needs REGISTRY"),
        (("docker",), {"TARGETS": "tpu"}, "unknown target 'tpu'"),
    ],
)
def test_images_say_what_is_missing(
    tmp_path: Path, builders: tuple[str, ...], variables: dict[str, str], says: str
) -> None:
    done, _ = images(tmp_path, *builders, **variables)
    assert done.returncode == 2
    assert says in done.stderr


def test_the_images_that_are_built_are_those_that_the_chart_asks_for(tmp_path: Path) -> None:
    _, calls = images(tmp_path, "docker")
    built = {re.findall(r"--tag (\S+)", call)[0] for call in calls}
    asked = set()
    for arguments in ((), ("--set", "modelServer.gpu.count=0")):
        text = yaml.safe_dump_all(render("default", *arguments))
        asked |= set(re.findall(r"image: (tokenbatch/\S+)", text))
    assert asked == built


@pytest.mark.parametrize("version", [3, 4])
def test_the_packaged_chart_renders_as_its_folder_does(tmp_path: Path, version: int) -> None:
    chart = packaged(tmp_path, version)
    assert chart.name == f"tokenbatch-{VERSION}.tgz"
    assert render("default", chart=chart) == render("default")


def test_a_release_fills_in_every_address_and_the_version(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in (name for name in listed if (ROOT / name).is_file()):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    assert any(OPEN.search(file.read_text()) for file in files(tree))
    told = ("7.8.9", "https://git.example/a&b/tokenbatch", "security@team.example")
    subprocess.run([tree / ".ci/release", *told], check=True, capture_output=True)
    assert not any(OPEN.search(file.read_text()) for file in files(tree))
    assert "security@team.example" in (tree / "SECURITY.md").read_text()
    assert "https://git.example/a&b/tokenbatch" in (tree / "README.md").read_text()
    chart = yaml.safe_load((tree / "helm/tokenbatch/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"], chart["home"]) == ("7.8.9", "7.8.9", told[1])
    for name in ("pyproject.toml", "aggregator/Dockerfile", "modelserver/Dockerfile", "tests/cluster/images.py"):
        text = (tree / name).read_text()
        assert "7.8.9" in text
        assert not re.search(rf"\b{re.escape(VERSION)}\b", text), name


def files(tree: Path) -> list[Path]:
    """Where addresses are left open."""
    return [
        file for name in FILLED for file in ([tree / name] if (tree / name).is_file() else (tree / name).rglob("*.*"))
    ]
