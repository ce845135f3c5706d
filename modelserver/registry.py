"""The wings of the model server: a line in each table that its core reads."""

from __future__ import annotations

from collections.abc import Mapping

from modelserver.engines.choice import Alternative, EngineWings
from modelserver.engines.pooling import ReadLayer
from modelserver.modes import Mode
from modelserver.wings.both.mode import Both
from modelserver.wings.direct.choice import choose_direct
from modelserver.wings.generation.mode import Generation
from modelserver.wings.modules.layers import LAYERS as SAVED_LAYERS

ALTERNATIVES: Mapping[str, Alternative] = {
    "direct": choose_direct,
}
LAYERS: Mapping[str, ReadLayer] = {
    **SAVED_LAYERS,
}
ENGINE_WINGS = EngineWings(ALTERNATIVES, LAYERS)
MODES: tuple[Mode, ...] = (
    Both(),
    Generation(),
)
"""Modes beside one row a query; `model.task` auto takes the first that suits the model's files."""
