"""How many model servers the present load needs: the metric that the autoscaler follows.

The metric is the number of replicas itself (HPA `External`, `AverageValue: 1`), so the autoscaler does not multiply it
by the number of pods that are ready.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from aggregator.wings.scaler.measuring.required_replicas import DRAIN_S, UTILISATION, required_replicas

_MAX_SLO_FACTOR = 2.0  # the target is missed: at most twice the pods, until the next look
_PAST_TOLERANCE = 1.11  # just above the autoscaler's tolerance of a tenth
_ROUNDING = 1e-9  # of floats: 3.0000000001 required replicas are 3


class StaleInputError(Exception):
    """An input is too old. The autoscaler must get an error, on which it keeps its pods."""


@dataclass(frozen=True, slots=True)
class DemandPolicy:
    """Settings: seconds, and the share of a pod's throughput to plan with.

    `max_hold_s` limits how long the backlog is held while pods are pending, because a pod may never start.
    """

    drain_s: float = DRAIN_S
    utilisation: float = UTILISATION
    peak_hold_s: float = 60.0
    max_age_s: float = 20.0
    max_hold_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        if not (0.0 < self.drain_s < math.inf and 0.0 < self.utilisation <= 1.0):
            raise ValueError(f"out of range: drain {self.drain_s} s, utilisation {self.utilisation}")
        if not (self.peak_hold_s >= 0.0 and self.max_age_s > 0.0 and self.max_hold_s >= 0.0):
            raise ValueError(f"out of range: {self.peak_hold_s}, {self.max_age_s}, {self.max_hold_s} s")


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one model, as all aggregators together see it.

    `arrival_tokens_per_s` includes refused and expired requests, or refusals would hide demand. `backlog_tokens` wait
    or are in flight (see `backlog_tokens`). `pod_tokens_per_s` is the throughput of one pod within the latency target
    (see `pod_throughput`); None until a pod has reported it. `replicas` are asked for, and `ready` of them serve; None
    if not known. `memory_pods` is the number of pods whose memory the texts fill (see `memory_pods`). `slo_pressure` is
    p99 divided by its target. `at_floor`: the token budget is at its minimum. `measured_s` is the time of the oldest
    input.
    """

    arrival_tokens_per_s: float
    backlog_tokens: float
    pod_tokens_per_s: float | None
    measured_s: float
    replicas: int | None = None
    ready: int | None = None
    memory_pods: float = 0.0
    slo_pressure: float = 0.0
    at_floor: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if a quantity is impossible."""
        amounts = (
            self.arrival_tokens_per_s,
            self.backlog_tokens,
            self.memory_pods,
            self.slo_pressure,
            self.replicas or 0,
            self.ready or 0,
        )
        if not all(0.0 <= amount < math.inf for amount in amounts):
            raise ValueError(f"not a load: {self}")
        if self.pod_tokens_per_s is not None and not 0.0 < self.pod_tokens_per_s < math.inf:
            raise ValueError(f"not a throughput: {self.pod_tokens_per_s} tokens/s")

    @property
    def pending(self) -> bool:
        """Whether some of the pods that were asked for do not serve yet."""
        return self.replicas is not None and self.ready is not None and self.ready < self.replicas


class Demand:
    """The published figure of one model: the formula, smoothed for the autoscaler."""

    __slots__ = ("_held", "_peaks", "_pending_since_s", "_pod_tokens_per_s", "_policy")

    def __init__(self, policy: DemandPolicy) -> None:
        self._policy = policy
        self._pod_tokens_per_s: float | None = None
        self._held: tuple[float, float] | None = None
        self._pending_since_s = math.inf
        self._peaks: deque[tuple[float, float]] = deque()

    def publish(self, load: Load, now_s: float) -> float:
        """Required replicas, which the autoscaler rounds up; 0 only if nothing arrives and nothing waits.

        Raises StaleInputError if an input is older than `max_age_s`.
        """
        age_s = now_s - load.measured_s
        if not age_s <= self._policy.max_age_s:
            raise StaleInputError(f"the oldest input is {age_s:.1f} s old, {self._policy.max_age_s} s are allowed")
        return _past_tolerance(self._peak(self._required(load, now_s), now_s), load.replicas)

    @property
    def saw_scale_up(self) -> bool:
        """False while pods are pending that were asked for before the first round."""
        return self._held is not None

    def _required(self, load: Load, now_s: float) -> float:
        if load.pod_tokens_per_s is not None:
            self._pod_tokens_per_s = load.pod_tokens_per_s
        backlog, factor = self._hold(load, now_s)
        speed = self._pod_tokens_per_s
        if speed is not None:
            required = factor * self._formula(load, backlog, speed)
            if not self.saw_scale_up:  # the backlog may ask for these pods, but not for more
                without_backlog = self._formula(load, 0.0, speed)
                return max(without_backlog, min(required, load.replicas or 0))
            return required
        # Cold start: the throughput of a pod is not known yet. Keep the present pods, at least one.
        if not (load.arrival_tokens_per_s or load.backlog_tokens):
            return 0.0
        return max(1.0, load.replicas or 0)

    def _formula(self, load: Load, backlog: float, pod_tokens_per_s: float) -> float:
        policy = self._policy
        return required_replicas(
            load.arrival_tokens_per_s,
            backlog,
            pod_tokens_per_s,
            drain_s=policy.drain_s,
            utilisation=policy.utilisation,
            in_memory=load.memory_pods,
        )

    def _hold(self, load: Load, now_s: float) -> tuple[float, float]:
        """Backlog and latency factor; while pods are pending no higher than when these were asked for.

        Otherwise the backlog that grows while pods start would ask for the same work again.
        """
        backlog = load.backlog_tokens
        factor = min(max(load.slo_pressure, 1.0), _MAX_SLO_FACTOR) if load.at_floor else 1.0
        if not load.pending:
            self._pending_since_s = math.inf
        else:
            self._pending_since_s = min(self._pending_since_s, now_s)
            if now_s - self._pending_since_s <= self._policy.max_hold_s:
                held = self._held or (backlog, factor)
                return min(backlog, held[0]), min(factor, held[1])
        self._held = (backlog, factor)
        return self._held

    def _peak(self, required: float, now_s: float) -> float:
        """The highest figure of the last `peak_hold_s`. A figure is dropped once a later one is as high."""
        while self._peaks and self._peaks[-1][1] <= required:
            self._peaks.pop()
        self._peaks.append((now_s, required))
        while now_s - self._peaks[0][0] > self._policy.peak_hold_s:
            self._peaks.popleft()
        return self._peaks[0][1]


def _past_tolerance(required: float, replicas: int | None) -> float:
    """The autoscaler ignores differences of a tenth or less, so one more than many pods would never be added."""
    if not replicas or math.ceil(required - _ROUNDING) <= replicas:
        return required
    return max(required, _PAST_TOLERANCE * replicas)
