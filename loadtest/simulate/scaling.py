"""The scaler's demand formula, and Kubernetes' horizontal autoscaler (autoscaling/v2) behind it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.wings.scaler.measuring.demand import Demand, DemandPolicy, Load
from aggregator.wings.scaler.measuring.required_replicas import pod_throughput
from aggregator.wings.scaler.reporting.arrivals import ArrivalPolicy, Arrivals
from loadtest.simulate.clock import Clock
from loadtest.simulate.model_servers import Fleet


@dataclass(frozen=True, slots=True)
class HpaPolicy:
    """Kubernetes' defaults: seconds, shares, pods."""

    min_replicas: int = 1
    max_replicas: int = 1000
    sync_s: float = 15.0
    tolerance: float = 0.1
    up_window_s: float = 0.0
    down_window_s: float = 300.0
    up_pods: int = 4
    up_share: float = 1.0
    down_pods: int = 0
    down_share: float = 1.0
    policy_period_s: float = 15.0
    down_period_s: float = 15.0


class Hpa:
    """One autoscaler; `replicas` is what it requested last."""

    def __init__(self, policy: HpaPolicy, replicas: int) -> None:
        self.replicas = replicas
        self._policy = policy
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def sync(self, metric: float | None, now_s: float) -> int:
        """One sync period: the replicas to have, given the metric (None: it could not be had)."""
        if metric is None:
            return self.replicas
        policy = self._policy
        before = self.replicas
        if not self._recommended:
            # What is there at first holds for a window too, as if it had been recommended a period ago.
            self._recommended.append((now_s - policy.sync_s, before))
        within = 1.0 - policy.tolerance <= metric / before <= 1.0 + policy.tolerance
        desired = before if within else math.ceil(metric)
        desired = self._stabilised(desired, now_s)
        desired = self._limited(desired, now_s)
        self.replicas = min(max(desired, policy.min_replicas), policy.max_replicas)
        if self.replicas != before:
            self._changes.append((now_s, self.replicas - before))
        return self.replicas

    def _stabilised(self, desired: int, now_s: float) -> int:
        policy = self._policy
        longest_s = max(policy.up_window_s, policy.down_window_s)
        self._recommended.append((now_s, desired))
        while self._recommended[0][0] < now_s - longest_s:
            self._recommended.popleft()
        lowest = min(count for at_s, count in self._recommended if at_s >= now_s - policy.up_window_s)
        highest = max(count for at_s, count in self._recommended if at_s >= now_s - policy.down_window_s)
        return min(max(self.replicas, lowest), highest)

    def _limited(self, desired: int, now_s: float) -> int:
        policy = self._policy
        while self._changes and self._changes[0][0] <= now_s - max(policy.policy_period_s, policy.down_period_s):
            self._changes.popleft()
        up_from_s, down_from_s = now_s - policy.policy_period_s, now_s - policy.down_period_s
        added = sum(change for at_s, change in self._changes if change > 0 and at_s > up_from_s)
        removed = -sum(change for at_s, change in self._changes if change < 0 and at_s > down_from_s)
        start_up, start_down = self.replicas - added, self.replicas + removed
        most = max(start_up + policy.up_pods, math.ceil(start_up * (1.0 + policy.up_share)))
        least = min(start_down - policy.down_pods, math.floor(start_down * (1.0 - policy.down_share)))
        return max(min(desired, most), least)


_COUNT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Autoscale:
    """The scaler's demand formula and the autoscaler behind it; a new pod serves after `start_s`."""

    hpa: HpaPolicy = field(default_factory=HpaPolicy)
    demand: DemandPolicy = field(default_factory=DemandPolicy)
    start_s: float = 90.0
    discovery_s: float = 2.0
    publish_s: float = 5.0


class Scaling:
    """Measures the load, publishes what it requires, and has pods started and stopped."""

    def __init__(self, autoscale: Autoscale, pods: int, until_s: float, clock: Clock, fleet: Fleet) -> None:
        self.hpa = Hpa(autoscale.hpa, pods)
        self.required = float(pods)
        self._autoscale = autoscale
        self._until_s = until_s
        self._clock, self._fleet = clock, fleet
        self._demand = Demand(autoscale.demand)
        self._arrivals = Arrivals(ArrivalPolicy(), 0.0)
        self._inputs = self._tokens = 0
        clock.at(_COUNT_EVERY_S, self._count)
        clock.at(self._autoscale.publish_s, self._publish)
        clock.at(self._autoscale.hpa.sync_s, self._sync)

    def arrived(self, tokens: int) -> None:
        """One query came, refused or not."""
        self._inputs += 1
        self._tokens += tokens

    def _count(self, _: object) -> None:
        now_s = self._clock.now_s
        if self._inputs:
            self._arrivals.arrived(self._inputs, now_s)
            self._arrivals.counted(self._inputs, self._inputs, self._tokens)
            self._inputs = self._tokens = 0
        self._again(_COUNT_EVERY_S, self._count)

    def _publish(self, _: object) -> None:
        now_s, aggregators = self._clock.now_s, self._fleet.aggregators
        load = Load(
            arrival_tokens_per_s=self._arrivals.tokens_per_s(now_s),
            backlog_tokens=float(sum(aggregator.held_tokens for aggregator in aggregators)),
            pod_tokens_per_s=pod_throughput([speed for aggregator in aggregators for speed in aggregator.speeds()]),
            measured_s=now_s,
            replicas=self.hpa.replicas,
            ready=min(self.hpa.replicas, len(self._fleet.ready)),
            at_floor=all(aggregator.at_floor() for aggregator in aggregators),
        )
        self.required = self._demand.publish(load, now_s)
        self._again(self._autoscale.publish_s, self._publish)

    def _sync(self, _: object) -> None:
        now_s, scale = self._clock.now_s, self._autoscale
        self._fleet.scale(self.hpa.sync(self.required, now_s), now_s + scale.start_s + scale.discovery_s)
        self._again(scale.hpa.sync_s, self._sync)

    def _again(self, in_s: float, act: Callable[[object], None]) -> None:
        if self._clock.now_s < self._until_s:
            self._clock.at(self._clock.now_s + in_s, act)
