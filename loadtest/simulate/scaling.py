"""The scaler and the autoscaler in the simulation: the core's demand formula, Kubernetes' rules."""

from __future__ import annotations

from collections.abc import Callable

from aggregator.scheduler.rates import ArrivalPolicy, Arrivals
from k8s.scaler.measuring.demand import Demand, Load, pod_throughput
from loadtest.simulate.clock import Clock
from loadtest.simulate.fleet import Fleet
from loadtest.simulate.hpa import Hpa
from loadtest.simulate.scenario import Autoscale, Scenario

_COUNT_EVERY_S = 1.0


class Scaling:
    """Measures the load, publishes what it requires, and has pods started and stopped."""

    def __init__(self, scenario: Scenario, clock: Clock, fleet: Fleet) -> None:
        assert scenario.autoscale is not None, "Nothing scales in this scenario. This is a bug."
        self.hpa = Hpa(scenario.autoscale.hpa, scenario.pods)
        self.required = float(scenario.pods)
        self._autoscale: Autoscale = scenario.autoscale
        self._until_s = scenario.duration_s
        self._clock, self._fleet = clock, fleet
        self._demand = Demand(scenario.autoscale.demand)
        self._arrivals = Arrivals(ArrivalPolicy(), 0.0)
        self._inputs = self._tokens = 0
        clock.at(_COUNT_EVERY_S, self._count)
        clock.at(self._autoscale.publish_s, self._publish)
        clock.at(self._autoscale.hpa.sync_s, self._sync)

    def arrived(self, tokens: int) -> None:
        """One query came, whatever becomes of it."""
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
        now_s, senders = self._clock.now_s, self._fleet.senders
        load = Load(
            arrival_tokens_per_s=self._arrivals.tokens_per_s(now_s),
            backlog_tokens=float(sum(sender.held_tokens for sender in senders)),
            pod_tokens_per_s=pod_throughput([speed for sender in senders for speed in sender.speeds()]),
            measured_s=now_s,
            replicas=self.hpa.replicas,
            ready=min(self.hpa.replicas, len(self._fleet.ready)),
            at_floor=all(sender.at_floor() for sender in senders),
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
