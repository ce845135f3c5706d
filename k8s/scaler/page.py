"""The live page of a cluster: the scaler's figures in their terms, and a link to each aggregator's page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from typing_extensions import override

from aggregator.observability.page import live_page
from aggregator.observability.viewers import EVERY_S, Feed
from aggregator.reports.words import Problem, Scaling, anchor, shortage
from k8s.scaler.measuring.aggregators import Aggregators
from k8s.scaler.measuring.figures import Figure
from k8s.scaler.published import Published
from k8s.scaler.settings import PolicySettings

_POINTS = int(60.0 / EVERY_S)
_MONITORING_PORT = 9464
"""Of aggregators, unless they are set to another."""


class ScalerFeed(Feed):
    """What the page shows; called on the viewers' thread, and reads whole values that the event loop replaces."""

    def __init__(
        self,
        published: Published,
        aggregators: Aggregators,
        policy: PolicySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._published = published
        self._aggregators = aggregators
        self._policy = policy
        self._clock = clock
        self._number = 0
        self._points: deque[Mapping[str, object]] = deque(maxlen=_POINTS)

    @override
    def sample(self) -> None:
        """A scaler has no stations."""

    @override
    def read(self, *, full: bool) -> tuple[object, object]:
        now_s = self._clock()
        self._number += 1
        figures = dict(self._published.figures)
        scaling = [self._scaling(model, figure) for model, figure in figures.items()]
        required = sum(each.required or 0.0 for each in scaling)
        point = {"t": now_s, "replicas": [required, sum(each.serving for each in scaling)]}
        self._points.append(point)
        event = {
            "number": self._number,
            "now": now_s,
            "name": f"scaler {self._published.scaler}".rstrip(),
            "version": live_page().version,
            "bottleneck": _sentence(scaling),
            "problems": [[each.text, anchor(each.runbook)] for each in self._problems(figures, scaling, now_s)],
            "scaling": [{**asdict(each), "missing": each.missing} for each in scaling],
            "aggregators": [
                [address, f"http://{address.rpartition(':')[0]}:{_MONITORING_PORT}/", busy_share, now_s - answered_s]
                for address, busy_share, answered_s in self._aggregators.seen()
            ],
            "point": point,
        }
        return event, {**event, "history": list(self._points)} if full else None

    def _scaling(self, model: str, figure: Figure) -> Scaling:
        load = figure.load
        serving = load.ready if load.ready is not None else figure.replicas_in_use
        return Scaling(
            model,
            load.arrival_tokens_per_s,
            load.backlog_tokens,
            load.pod_tokens_per_s,
            load.memory_pods,
            self._policy.drain_s,
            self._policy.utilisation,
            figure.required_replicas,
            serving,
            pending=0,
        )

    def _problems(self, figures: Mapping[str, Figure], scaling: Sequence[Scaling], now_s: float) -> Sequence[Problem]:
        blind = not figures or any(now_s - figure.measured_s > self._policy.max_age_s for figure in figures.values())
        found = (
            [Problem(f"An input is missing: {self._published.explain()}.", "TokenbatchScalerBlind")] if blind else []
        )
        return found + [shortage(each) for each in scaling if each.missing]


def _sentence(scaling: Sequence[Scaling]) -> str:
    short = [f"{each.missing} more of {each.model}" for each in scaling if each.missing]
    if short:
        return f"Model servers are short: {', '.join(short)} would hold the target."
    return "The model servers that serve hold the target." if scaling else "Nothing was measured yet."
