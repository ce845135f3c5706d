"""The wings of the model server: a line in each table that its core reads."""

from __future__ import annotations

from collections.abc import Mapping

from modelserver.engines.choice import Alternative
from modelserver.modes import Mode
from modelserver.wings.both.mode import Both
from modelserver.wings.direct.choice import choose_direct
from modelserver.wings.generation.mode import Generation

ALTERNATIVES: Mapping[str, Alternative] = {
    "direct": choose_direct,
}
"""Engines beside vLLM's own way, by the name that `engine.kind` has for them; `auto` tries the first."""
MODES: tuple[Mode, ...] = (
    Both(),
    Generation(),
)
"""Modes beside one row a query; `model.task` auto takes the first that suits the model's files."""
