"""Say how many model servers the present load needs: the metric that the autoscaler follows.

The figure is the number of replicas itself (HPA `External`, `AverageValue: 1`), so that the autoscaler's own
multiplication by the pods that happen to be ready does no harm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_SLO_FACTOR = 2.0
_PAST_TOLERANCE = 1.11
_ROUNDING = 1e-9


class StaleInputError(Exception):
    """An input is too old to tell demand from; the autoscaler must get an error, on which it keeps its pods."""


@dataclass(frozen=True, slots=True)
class DemandPolicy:
    """Settings: seconds, and the share of a pod's throughput to plan with.

    `max_hold_s` ends the hold of backlog while pods are pending: one that never comes must not stop the rest.
    """

    drain_s: float = 30.0
    utilisation: float = 0.75
    peak_hold_s: float = 60.0
    max_age_s: float = 20.0
    max_hold_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise ValueError when a setting is out of range."""
        if not (0.0 < self.drain_s < math.inf and 0.0 < self.utilisation <= 1.0):
            raise ValueError(f"out of range: drain {self.drain_s} s, utilisation {self.utilisation}")
        if not (self.peak_hold_s >= 0.0 and self.max_age_s > 0.0 and self.max_hold_s >= 0.0):
            raise ValueError(f"out of range: {self.peak_hold_s}, {self.max_age_s}, {self.max_hold_s} s")


@dataclass(frozen=True, slots=True)
class Load:
    """What all aggregators together see of one model.

    `arrival_tokens_per_s` counts refused and expired arrivals too, or shedding would hide demand. `backlog_tokens`
    is what waits or is in flight, from all sources (see `backlog_tokens`). `pod_tokens_per_s` is what one pod does
    within its service level (see `pod_throughput`); None while no pod has said. `replicas` are asked for, `ready`
    of them serve; None where it cannot be told. `memory_pods` is what the keys and values of what arrives fill, in
    whole pods' memory (see `memory_pods`). `slo_pressure` is p99 over its objective, and `at_floor` says that
    the token budget cannot fall further. `measured_s` is the time of the oldest of these inputs.
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
        """Raise ValueError when a quantity is none."""
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
        """Whether pods that were asked for do not serve yet."""
        return self.replicas is not None and self.ready is not None and self.ready < self.replicas


def backlog_tokens(unread_records: float, tokens_per_record: float, held_tokens: float) -> float:
    """Tokens that wait: records from fetch position to log end, and those held in queues or in flight.

    Not the committed lag: what is held here is not committed yet, and would count twice.
    """
    return unread_records * tokens_per_record + held_tokens


def pod_throughput(replicas: Iterable[tuple[int, float]]) -> float | None:
    """R in tokens/s, the mean over replicas of budget over predicted step time at that budget; None without any."""
    speeds = [token_budget / step_s for token_budget, step_s in replicas]
    return sum(speeds) / len(speeds) if speeds else None


def memory_pods(arrival_tokens_per_s: float, kv_token_s_per_token: float, pod_kv_tokens: float) -> float:
    """Lambda * W / K: the pods whose memory the texts that are under way fill, as many as Little's law says.

    W: how long keys and values of how many tokens are held for each token that arrives; K: tokens that a pod can hold.
    0 where the model generates nothing.
    """
    return arrival_tokens_per_s * kv_token_s_per_token / pod_kv_tokens if pod_kv_tokens else 0.0


def required_replicas(
    arrival_tokens_per_s: float, backlog: float, pod_tokens_per_s: float, policy: DemandPolicy, in_memory: float = 0.0
) -> float:
    """(max(lambda / R, M) + B / (drain * R)) / rho: pods to keep up with what arrives, and drain the backlog in time.

    M: `in_memory`, the pods that what arrives fills the memory of.
    """
    keeping_up = max(arrival_tokens_per_s / pod_tokens_per_s, in_memory)
    return (keeping_up + backlog / policy.drain_s / pod_tokens_per_s) / policy.utilisation


class Demand:
    """The published figure for one model: the formula, smoothed, as the autoscaler needs it; soft state."""

    __slots__ = ("_held", "_peaks", "_pending_since_s", "_pod_tokens_per_s", "_policy")

    def __init__(self, policy: DemandPolicy) -> None:
        self._policy = policy
        self._pod_tokens_per_s: float | None = None
        self._held: tuple[float, float] | None = None
        self._pending_since_s = math.inf
        self._peaks: deque[tuple[float, float]] = deque()

    def publish(self, load: Load, now_s: float) -> float:
        """Replicas required, for the autoscaler to round up; 0 only when nothing arrives and nothing waits.

        Raises StaleInputError when an input is older than `max_age_s`, never returning 0 for want of knowledge.
        """
        age_s = now_s - load.measured_s
        if not age_s <= self._policy.max_age_s:
            raise StaleInputError(f"the oldest input is {age_s:.1f} s old, {self._policy.max_age_s} s are allowed")
        return _past_tolerance(self._peak(self._required(load, now_s), now_s), load.replicas)

    @property
    def knows_what_for(self) -> bool:
        """False while pods are pending that were asked for before the first look."""
        return self._held is not None

    def _required(self, load: Load, now_s: float) -> float:
        if load.pod_tokens_per_s is not None:
            self._pod_tokens_per_s = load.pod_tokens_per_s
        backlog, factor = self._hold(load, now_s)
        speed, policy, arriving = self._pod_tokens_per_s, self._policy, load.arrival_tokens_per_s
        if speed is not None:
            required = factor * required_replicas(arriving, backlog, speed, policy, load.memory_pods)
            if not self.knows_what_for:  # then what waits asks for no pods besides those
                without_backlog = required_replicas(arriving, 0.0, speed, policy, load.memory_pods)
                return max(without_backlog, min(required, load.replicas or 0))
            return required
        # Cold start: what one pod does is not known before one has served. Keep what there is, at least one.
        return max(1.0, load.replicas or 0) if load.arrival_tokens_per_s or load.backlog_tokens else 0.0

    def _hold(self, load: Load, now_s: float) -> tuple[float, float]:
        """Backlog and service-level factor, while pods are pending no higher than when they were asked for.

        Else the backlog that grows while pods load asks for the same work a second time.
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
        """The highest figure of the last `peak_hold_s`; only figures that no later one tops are kept."""
        while self._peaks and self._peaks[-1][1] <= required:
            self._peaks.pop()
        self._peaks.append((now_s, required))
        while now_s - self._peaks[0][0] > self._policy.peak_hold_s:
            self._peaks.popleft()
        return self._peaks[0][1]


def _past_tolerance(required: float, replicas: int | None) -> float:
    """The autoscaler ignores what differs by a tenth or less, so one pod more than many would never come."""
    if not replicas or math.ceil(required - _ROUNDING) <= replicas:
        return required
    return max(required, _PAST_TOLERANCE * replicas)
