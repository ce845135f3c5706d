"""Kubernetes' horizontal autoscaler for an external metric with an average value of 1 (autoscaling/v2).

After its controller: every sync period, desired = ceil(metric), unless the metric is within the tolerance of the
present replicas; then the recommendations of the stabilisation window (the highest when scaling down, the lowest
when scaling up), then the policies' limits on the change, then the bounds. With an average value, the number of
pods that are ready does not enter; a metric that cannot be had changes nothing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


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
    """One autoscaler; `replicas` is what it asked for last."""

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
