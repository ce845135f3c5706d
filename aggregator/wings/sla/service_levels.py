"""The service levels that the settings ask for."""

from __future__ import annotations

from functools import partial

from aggregator.scheduler.budget import NewServiceLevel
from aggregator.settings.aggregator import SlaSettings
from aggregator.wings.sla.controller import SlaGoal, SloTracker


def service_levels(settings: SlaSettings) -> NewServiceLevel | None:
    """What makes a model revision's service level; None without a latency target."""
    return None if settings.latency_s is None else partial(SloTracker, SlaGoal(answer_s=settings.latency_s))
