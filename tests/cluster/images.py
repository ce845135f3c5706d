"""Build the project's images from its Dockerfiles, over a base made of Debian's packages."""

from __future__ import annotations

import shutil
from pathlib import Path

from loadtest.bench.instant_modelserver import tokenizer_folder
from tests.chart.rendering import ROOT
from tests.cluster.lab import HOME, Lab

VERSION = "0.1.0"
AGGREGATOR = f"tokenbatch/aggregator:{VERSION}"
SYNTHETIC = f"tokenbatch/modelserver:{VERSION}-synthetic"
CPU = f"tokenbatch/modelserver:{VERSION}-cpu"
NO_WEIGHTS = ("*.safetensors", "*.bin", "*.onnx", "onnx", "openvino")


def build_light(lab: Lab) -> None:
    """The aggregator's image, and over it the model server with the synthetic engine."""
    lab.image(AGGREGATOR, ROOT / "aggregator/Dockerfile", ROOT)
    lab.image(
        SYNTHETIC,
        Path(__file__).parent / "synthetic/Dockerfile",
        _synthetic_folder(),
        "--build-arg",
        f"BASE_IMAGE=localhost/{AGGREGATOR}",
    )


def build_cpu(lab: Lab) -> None:
    """The model server with vLLM on a CPU, and the weights of MiniLM; gigabytes."""
    lab.image(CPU, ROOT / "modelserver/Dockerfile", ROOT, "--target", "cpu")


def _synthetic_folder() -> Path:
    folder = HOME / "synthetic"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "modelserver", folder / "modelserver", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(tokenizer_folder(), folder / "model", ignore=shutil.ignore_patterns(*NO_WEIGHTS))
    return folder
