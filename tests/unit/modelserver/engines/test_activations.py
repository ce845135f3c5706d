"""Logits become scores."""

from __future__ import annotations

import numpy as np
import pytest

from modelserver.engines.engine import Activation
from modelserver.engines.model_config import activated


@pytest.mark.parametrize(
    ("activation", "scores"),
    [
        (Activation.IDENTITY, [[0.0, -200.0], [200.0, 1.0]]),
        (Activation.SIGMOID, [[0.5, 0.0], [1.0, 0.7310586]]),
        (Activation.SOFTMAX, [[1.0, 0.0], [1.0, 0.0]]),
    ],
)
def test_scores_of_large_logits_are_finite(activation: Activation, scores: list[list[float]]) -> None:
    found = activated(np.array([[0.0, -200.0], [200.0, 1.0]], np.float32), activation)
    assert found.dtype == np.float32
    assert np.allclose(found, scores, atol=1e-7)
