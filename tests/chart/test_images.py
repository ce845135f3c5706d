"""The Dockerfiles: clean, pinned, not run as root, on a base of the builder's choice, with what the commands import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chart.rendering import ROOT, pod_specs, render

FILES = (ROOT / "aggregator/Dockerfile", ROOT / "modelserver/Dockerfile")


def stages(file: Path) -> dict[str, list[str]]:
    """Each stage's instructions, by its name or number, line continuations joined, comments left out."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("FROM "):
            _, _, name = line.partition(" AS ")
            found[name or str(len(found))] = []
        if found:
            found[next(reversed(found))].append(line)
    return found


def instructions(file: Path, target: str) -> list[str]:
    """All that makes a target, from the base image up."""
    found = stages(file)
    lines = found[target]
    while (parent := lines[0].split()[1]) in found:
        lines = [*found[parent], *lines]
    return lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run([f"{sys.prefix}/bin/hadolint", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_base_is_the_builders_choice_and_by_default_an_exact_version(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-\S+", default)
    own = set(stages(file))
    for line in text.splitlines():
        if line.startswith("FROM "):
            assert line.split()[1] in {"${BASE_IMAGE}", *own}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_no_dockerfile_names_a_registry_of_packages(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"--(extra-)?index-url|https?://", text)


@pytest.mark.parametrize(("file", "targets"), [(FILES[0], ["1"]), (FILES[1], ["cpu", "gpu"])])
def test_the_last_word_on_the_user_is_not_root(file: Path, targets: list[str]) -> None:
    for target in targets:
        users = [line for line in stages(file)[target] if line.startswith("USER ")]
        assert users[-1:] == ["USER 10001:10001"]


@pytest.mark.parametrize(("file", "targets"), [(FILES[0], ["1"]), (FILES[1], ["cpu", "gpu"])])
def test_what_changes_with_each_version_lies_above_the_packages(file: Path, targets: list[str]) -> None:
    for target in targets:
        lines = instructions(file, target)
        packages = max(at for at, line in enumerate(lines) if re.search(r" pip install |^COPY --from=packages ", line))
        below = lines[:packages]
        assert not [line for line in below if re.search(r"^ARG |^(COPY|ADD) .*/app\b|/app\b.*compileall", line)]
        assert [line for line in lines[packages:] if re.match(r"COPY .*/app\b", line)]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_gigabytes_are_installed_where_they_stay_and_in_several_layers(target: str) -> None:
    """A copy from another stage is one more of them all on the builder's disk; so is one layer, for some builders."""
    lines = instructions(FILES[1], target)
    assert not [line for line in lines if re.match(r"COPY .*/opt/tokenbatch\b", line)]
    assert len([line for line in lines if " pip install " in line]) == 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_packages_are_installed_as_locked_and_nothing_more(file: Path) -> None:
    installs = [line for lines in stages(file).values() for line in lines if "pip install" in line]
    assert installs
    assert all("--no-deps" in line and re.search(r" --requirement /\S+\.txt\b", line) for line in installs)


def test_every_command_of_the_chart_is_in_its_image() -> None:
    copied = {
        "aggregator": {"aggregator", "k8s", "protos"},
        "modelserver": {"modelserver", "protos"},  # and of k8s what each process has
    }
    for name, packages in copied.items():
        text = (ROOT / name / "Dockerfile").read_text(encoding="utf-8")
        assert set(re.findall(r"^COPY (\w+) /app/\1$", text, re.MULTILINE)) == packages
    for spec in pod_specs(render("default")).values():
        (container,) = spec["containers"]
        package = container["command"][2].partition(".")[0]
        image = container["image"].partition(":")[0].rpartition("/")[2]
        assert package in copied[image]


def test_ports_are_those_of_the_chart() -> None:
    lines = [re.findall(r"^EXPOSE (.+)$", file.read_text("utf-8"), re.MULTILINE) for file in FILES]
    exposed = {port for found in lines for line in found for port in line.split()}
    named = {
        str(port["containerPort"])
        for name, spec in pod_specs(render("default")).items()
        if not name.endswith("-scaler")
        for port in spec["containers"][0].get("ports", ())
    }
    assert named == exposed
