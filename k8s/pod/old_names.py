"""The names that metrics had before all of ours began with `tokenbatch`: Prometheus sees both for one release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.sdk.metrics.export import Metric

_PREFIX = "tokenbatch."
_KEPT = frozenset(("tokenbatch.engine", "tokenbatch.tokens"))
"""They always had it."""
_WITHOUT_EMBED = ("generate.", "mixed.")


def under_old_names(metrics: Sequence[Metric]) -> list[Metric]:
    """Copies of ours under their old names; those of OpenTelemetry's conventions have kept theirs."""
    return [
        replace(metric, name=_old(metric.name.removeprefix(_PREFIX)))
        for metric in metrics
        if metric.name.startswith(_PREFIX) and metric.name not in _KEPT
    ]


def _old(name: str) -> str:
    return name if name.startswith(_WITHOUT_EMBED) else f"embed.{name}"
