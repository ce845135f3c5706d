"""Build the project's images from its Dockerfiles, over a base made of Debian's packages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from loadtest.stack.instant_modelserver import tokenizer_folder
from tests.chart.rendering import ROOT
from tests.cluster.one_node_cluster import HOME, OneNodeCluster

VERSION = "0.1.0"
PYTHON = {"python_version": "3.13", "python_full_version": "3.13.0"}
"""Of the base image, as the markers of requirements/ ask for it."""
AGGREGATOR = f"tokenbatch/aggregator:{VERSION}"
SYNTHETIC = f"tokenbatch/modelserver:{VERSION}-synthetic"
CPU = f"tokenbatch/modelserver:{VERSION}-cpu"
GPU = f"tokenbatch/modelserver:{VERSION}"
HAS_ROOM_FOR_GPU = shutil.disk_usage(ROOT).free > 35e9
NO_WEIGHTS = ("*.safetensors", "*.bin", "*.onnx", "onnx", "openvino")


def build_light(lab: OneNodeCluster) -> None:
    """The aggregator's image, and over it the model server with the synthetic engine."""
    lab.image(AGGREGATOR, ROOT / "aggregator/Dockerfile", ROOT)
    lab.image(
        SYNTHETIC,
        Path(__file__).parent / "synthetic/Dockerfile",
        _synthetic_folder(),
        "--build-arg",
        f"BASE_IMAGE=localhost/{AGGREGATOR}",
    )


def build_cpu(lab: OneNodeCluster) -> None:
    """The model server with vLLM on a CPU, and the weights of MiniLM; seven gigabytes, twice that while built."""
    _build_modelserver(lab, CPU, "cpu")


def build_gpu(lab: OneNodeCluster) -> None:
    """The model server with vLLM for NVIDIA GPUs; nine gigabytes, twice that while built."""
    _build_modelserver(lab, GPU, "gpu")


def _build_modelserver(lab: OneNodeCluster, name: str, target: str) -> None:
    """Stage by stage, as the builder keeps every step's files a second time until it ends."""
    for stage in (f"{target}-cuda", f"{target}-torch", target):
        lab.image(name, ROOT / "modelserver/Dockerfile", ROOT, "--target", stage)


def locked(requirements: str) -> set[tuple[str, str]]:
    """Name and version of each Python package that an image takes, by the file in requirements/."""
    text = (ROOT / "requirements" / requirements).read_text(encoding="utf-8")
    lines = (Requirement(line) for line in text.splitlines())
    taken = (line for line in lines if line.marker is None or line.marker.evaluate(PYTHON))
    found = {(line.name, str(line.specifier).removeprefix("==")) for line in taken}
    assert found
    return found


def packages(listed: dict[str, Any], kind: str) -> set[tuple[str, str]]:
    """Name and version of each package of a kind, pypi or deb, in a bill of materials."""
    return {
        (re.sub(r"[-_.]+", "-", each["name"].lower()), each["version"])
        for each in listed["components"]
        if each.get("purl", "").startswith(f"pkg:{kind}/")
    }


def _synthetic_folder() -> Path:
    folder = HOME / "synthetic"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "modelserver", folder / "modelserver", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(tokenizer_folder(), folder / "model", ignore=shutil.ignore_patterns(*NO_WEIGHTS))
    return folder
