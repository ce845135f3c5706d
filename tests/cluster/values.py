"""What the tests tell the chart: where Kafka is, which images, and pods small enough for one small node."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.cluster.images import CPU, SYNTHETIC
from tests.cluster.release import MODEL, merge

DIMENSIONS = 7
"""Of so few, the vectors of the smoke test's sentences happen to lie as their meanings do."""
FIXED_S, PER_TOKEN_S = 0.02, 0.0005
STEP_TOKENS = 256

_SMALL = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
_IMAGES: dict[str, Any] = {"registry": "localhost", "pullPolicy": "Never"}


def synthetic(kafka: str, /, **more: Any) -> dict[str, Any]:
    """Values with the engine that sleeps its latency curve; `more` is merged over them."""
    values: dict[str, Any] = {
        "kafka": {"bootstrapServers": kafka},
        "image": dict(_IMAGES),
        "models": [{"name": MODEL, "aliases": ["minilm"], "source": {"path": "/opt/model"}}],
        "modelServer": {
            "image": {"tag": SYNTHETIC.rpartition(":")[2]},
            "resources": deepcopy(_SMALL),
            "preStopSeconds": 2,
            "config": {
                "engine": {"kind": "synthetic", "step_tokens": STEP_TOKENS},
                "synthetic": {"fixed_s": FIXED_S, "per_token_s": PER_TOKEN_S, "dimensions": DIMENSIONS},
            },
        },
        "aggregator": {"resources": deepcopy(_SMALL), "preStopSeconds": 2},
        "scaler": {"resources": deepcopy(_SMALL), "preStopSeconds": 2},
    }
    merge(values, more)
    return values


def vllm(kafka: str) -> dict[str, Any]:
    """Values with vLLM on a CPU and the MiniLM that the image brings; nothing is scaled."""
    values = synthetic(kafka, autoscaling={"mode": "none"})
    values["models"] = [{"name": MODEL, "aliases": ["minilm"], "source": {}}]
    values["modelServer"] = {
        "image": {"tag": CPU.rpartition(":")[2]},
        "gpu": {"count": 0},
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "6Gi"}},
    }
    return values
