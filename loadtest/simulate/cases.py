"""The cases that policies are compared on, by name; rates follow from a share of what the pods can do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

from aggregator.scheduler.curve import Curve
from aggregator.scheduler.work_item import Priority
from loadtest.simulate.clock import find
from loadtest.simulate.load import Bursts, Day, Lengths, QueryKind, Replay, Steady, Steps
from loadtest.simulate.scaling import Autoscale, HpaPolicy
from loadtest.simulate.scenario import Fault, FaultKind, Scenario

MIXED = Lengths(documents=0.1)
SKEWED = Lengths(QueryKind.LOGNORMAL)
_QUESTIONS = 3610
"""The texts of `loadtest/data/nq_open_dev_queries.txt`."""
_POISON = 2e-4
_STEP_OVERHEAD_S = 0.004
"""The cost of a batch to a server on two processors besides its step, which no other batch's step hides."""


def capacity(curve: Curve, lengths: Lengths, pods: int = 1) -> float:
    """Queries per second that pods answer when every step holds the saturation point."""
    return pods * curve.throughput(curve.saturation_point) / _mean_tokens(lengths)


def case(name: str, *, curve: str = "a100-like", seconds: float = 20.0) -> Scenario:
    """The case of that name on a curve. Raises KeyError for an unknown one."""
    shape = find(curve)
    one = capacity(shape, Lengths())
    # Four full steps, and what the network and the rest take: tight, but to be had.
    slo_s = round(max(0.1, 4.0 * shape.time_s(shape.saturation_point)), 3)
    base = Scenario(name, Steady(0.8 * one), seconds, curve=curve, slo_s=slo_s, deadline_s=5.0 * slo_s)
    cases = {
        "steady": base,
        "steady-high": replace(base, arrivals=Steady(0.93 * one)),
        "low": replace(base, arrivals=Steady(0.05 * one)),
        "bursts": replace(base, arrivals=Bursts(0.6 * one, factor=3.0, burst_s=0.25, every_s=2.5)),
        "mixed": replace(base, arrivals=Steady(0.8 * capacity(shape, MIXED)), lengths=MIXED),
        "skewed": replace(base, arrivals=Steady(0.8 * capacity(shape, SKEWED)), lengths=SKEWED),
        "overload": replace(base, arrivals=Steady(1.2 * one), deadline_s=slo_s),
        "slow-pod": replace(
            base, arrivals=Steady(0.6 * 4 * one), pods=4, faults=(Fault(0.25 * seconds, 0, FaultKind.SLOW, 3.0),)
        ),
        "pod-dies": replace(base, arrivals=Steady(0.6 * 4 * one), pods=4, faults=(_death(seconds),)),
        "step": replace(base, arrivals=Steps(((0.0, 0.3 * one), (0.4 * seconds, 0.95 * one)))),
        "shared": replace(base, arrivals=Steady(0.8 * 4 * one), pods=4, aggregators=4),
        "backlog": replace(
            base,
            arrivals=Steady(0.05 * one),
            deadline_s=inf,
            backlog=round(1.5 * seconds * one),
            step_overhead_s=_STEP_OVERHEAD_S,
            priority=Priority.DEFAULT,
        ),
        "beside-backlog": replace(
            base,
            arrivals=Steady(0.2 * one),
            backlog=round(1.5 * seconds * one),
            step_overhead_s=_STEP_OVERHEAD_S,
        ),
    }
    cases["beside-anothers-backlog"] = replace(
        cases["beside-backlog"], name="beside-anothers-backlog", aggregators=2, apart=True
    )
    return cases[name]


NAMES = (
    "steady",
    "steady-high",
    "low",
    "bursts",
    "mixed",
    "skewed",
    "overload",
    "slow-pod",
    "pod-dies",
    "step",
    "shared",
)
BACKLOGS = ("backlog", "beside-backlog")


def backlog_under_overload(seconds: float = 10.0) -> Scenario:
    """A backlog beside more calls than the server can answer."""
    beside, overload = case("beside-backlog", seconds=seconds), case("overload", seconds=seconds)
    return replace(beside, name="backlog-under-overload", arrivals=overload.arrivals, backlog=2000)


def repeated(share: float, seconds: float = 10.0) -> Scenario:
    """The bundled questions by Zipf's law, at a share of what the server can do if it computes each of them."""
    base = case("steady", seconds=seconds)
    rate = share * capacity(find(base.curve), Lengths())
    return replace(base, name=f"zipf-at-{100 * share:.0f}", arrivals=Steady(rate), texts=_QUESTIONS)


def poisoned(pods: int, share: float, seconds: float = 10.0) -> Scenario:
    """Records of which one in five thousand makes every step fail that it is in."""
    base = case("steady", seconds=seconds)
    rate = share * capacity(find(base.curve), Lengths(), pods)
    arrivals, name = Steady(rate), f"poison-{pods}-at-{100 * share:.0f}"
    return replace(base, name=name, arrivals=arrivals, pods=pods, priority=Priority.DEFAULT, poison=_POISON)


def trace_hour(copies: int = 20, *, seconds: float = 3600.0) -> Scenario:
    """The bundled trace's hour, `copies` of it within ten minutes of each other, on pods that are scaled."""
    arrivals = Replay(copies, spread_s=600.0)
    return replace(_scaled("trace-hour"), arrivals=arrivals, duration_s=seconds, lengths=Lengths(documents=1.0), pods=4)


def synthetic_day(day_s: float = 7200.0) -> Scenario:
    """A day, run `86400 / day_s` times as fast, on pods that are scaled: pod starts are as slow as they are."""
    return replace(_scaled("day"), arrivals=Day(20.0, 260.0, day_s), duration_s=day_s, lengths=MIXED, pods=1)


def batcher(size: int, seconds: float = 20.0) -> Scenario:
    """MiniTriton's model at 70 % of what batches of `size` allow; the policies have no network, nor anything else."""
    rate = 0.7 * size / find("batcher").time_s(size)
    lengths = Lengths(QueryKind.FIXED, fixed_tokens=1, longest=1)
    base = Scenario(f"batcher-{size}", Steady(rate), seconds, curve="batcher", lengths=lengths, noise=0.0)
    return replace(base, intake_s=0.0, network_s=0.0, complete_s=0.0)


def large(pods: int = 1000, aggregators: int = 100, seconds: float = 0.25) -> Scenario:
    """Many pods and aggregators at 80 % of what they can do."""
    rate = 0.8 * capacity(find("a100-like"), Lengths(), pods)
    return Scenario("large", Steady(rate), seconds, pods=pods, aggregators=aggregators, warm_up_s=0.0)


def pool(pods: int, aggregators: int, share: float, seconds: float = 4.0) -> Scenario:
    """Several of both at a share of what the pods can do; the latency target is that of the other cases."""
    base = case("steady", seconds=seconds)
    name = f"pool-{pods}x{aggregators}-at-{100 * share:.0f}"
    rate = share * capacity(find(base.curve), Lengths(), pods)
    return replace(base, name=name, arrivals=Steady(rate), pods=pods, aggregators=aggregators, warm_up_s=0.2 * seconds)


def _scaled(name: str) -> Scenario:
    return Scenario(
        name,
        Steady(0.0),
        3600.0,
        curve="minilm-cpu",
        slo_s=2.0,
        noise=0.05,
        autoscale=Autoscale(HpaPolicy(max_replicas=40)),
        sample_s=5.0,
    )


def _death(seconds: float) -> Fault:
    return Fault(0.5 * seconds, 1, FaultKind.DIES)


@cache
def _mean_tokens(lengths: Lengths) -> float:
    return lengths.mean()
