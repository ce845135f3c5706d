"""The wings of the model server: a line in each table that its core reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from k8s.pod.telemetry import Telemetry
from modelserver.engines.choice import Alternative, EngineWings, ScoringOf, no_scores
from modelserver.engines.model_config import VLLMS_ALONE, OwnClasses
from modelserver.engines.pooling import ReadLayer
from modelserver.engines.rows import ReadRows
from modelserver.modes import Mode
from modelserver.service.servicer import BatchSpan
from modelserver.startup import Profiler
from modelserver.wings.both.mode import Both
from modelserver.wings.direct.choice import choose_direct
from modelserver.wings.generation.mode import Generation
from modelserver.wings.modules.layers import LAYERS as SAVED_LAYERS
from modelserver.wings.padded.classes import PADDED
from modelserver.wings.profile import command as profile
from modelserver.wings.profile.profiler import SaturationProfiler
from modelserver.wings.scores.scoring import scoring_of
from modelserver.wings.token_vectors.rows import read_rows as read_token_vectors
from modelserver.wings.tracing.batch_spans import open_spans

ALTERNATIVES: Mapping[str, Alternative] = {
    "direct": choose_direct,
}
LAYERS: Mapping[str, ReadLayer] = {
    **SAVED_LAYERS,
}
SCORING: tuple[ScoringOf, ...] = (
    scoring_of,
)  # fmt: skip
"""How models score; the first counts."""
CLASSES: tuple[OwnClasses, ...] = (
    PADDED,
)  # fmt: skip
"""Classes of models beside vLLM's; the first counts."""
ENGINE_WINGS = EngineWings(ALTERNATIVES, LAYERS, next(iter(SCORING), no_scores), next(iter(CLASSES), VLLMS_ALONE))
MODES: tuple[Mode, ...] = (
    Both(),
    Generation(),
)
"""Modes beside one row a query; `model.task` auto takes the first that suits the model's files."""
ROWS: tuple[ReadRows, ...] = (
    read_token_vectors,
)  # fmt: skip
"""Readers of folders whose models give other rows than one vector a text; the first that finds some counts."""
PROFILERS: tuple[type[Profiler], ...] = (
    SaturationProfiler,
)  # fmt: skip
"""Measures an engine at the start; the first counts."""
COMMANDS: Mapping[str, ModuleType] = {
    "profile": profile,
}
"""What runs instead of serving, by name; each module has a PURPOSE, add_arguments and run."""
SPANS: tuple[Callable[[Telemetry], BatchSpan | None], ...] = (
    open_spans,
)  # fmt: skip
"""Spans of batches."""
