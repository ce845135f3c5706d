"""Sections about a load that pods are to bear: the knee, attainment, fill, and how many GPUs it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from loadtest.report.section import Plot, Section, Series, Table
from loadtest.simulate import cases
from loadtest.simulate.arrivals import Steady
from loadtest.simulate.curves import find
from loadtest.simulate.lengths import Lengths
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.sweep import best
from loadtest.simulate.world import simulate


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: `quick` is for a look, with few points, short runs and settings not swept."""

    quick: bool
    seed: int = 1

    @property
    def seconds(self) -> float:
        """Virtual seconds of a run."""
        return 3.0 if self.quick else 12.0

    @property
    def loads(self) -> tuple[float, ...]:
        """Shares of a pod's capacity."""
        if self.quick:
            return (0.2, 0.8, 1.1)
        return (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.2)

    def settled(self, kind: Kind, scenario: Scenario) -> Policy:
        """The policy at its best setting for a scenario, found on another seed than the one shown."""
        tokens = find(scenario.curve).saturation_point if kind is Kind.STATIC_TOKENS else 0
        return Policy(kind, tokens=tokens, depth=1, wait_s=0.005) if self.quick else best(kind, scenario)

    def command(self, section: str) -> str:
        """What makes a section anew."""
        quick = " --quick" if self.quick else ""
        return f"python -m loadtest report --only {section} --seed {self.seed}{quick}"


Runs = dict[Policy, list[Outcome]]
SectionMaker = Callable[[Effort], Section]


@cache
def _runs(effort: Effort) -> Runs:
    """One pod under every policy at its best setting, a run for each load; of several sections."""
    base = replace(cases.case("steady", seconds=effort.seconds), warm_up_s=0.1 * effort.seconds)
    one = cases.capacity(find(base.curve), base.lengths)
    return {
        policy: [simulate(replace(base, arrivals=Steady(share * one)), policy, effort.seed) for share in effort.loads]
        for policy in (effort.settled(kind, base) for kind in Kind)
    }


def _knee(effort: Effort) -> Section:
    runs = _runs(effort)
    lines = [
        Series(policy.label, [(one.throughput, 1e3 * one.p99_s) for one in found]) for policy, found in runs.items()
    ]
    rows = [
        (policy.label, f"{share:.2f}", f"{one.throughput:.0f}", *(f"{1e3 * x:.1f}" for x in (one.p50_s, one.p99_s)))
        for policy, found in runs.items()
        for share, one in zip(effort.loads, found, strict=True)
    ]
    return Section(
        "knee",
        "Latency against throughput",
        "One pod, questions of 12 tokens, Poisson arrivals. Each point is a load; a policy is the better, the further "
        "right its line stays low. Every policy runs at the setting that does best at 80 % of what the pod can do.",
        [Plot("p99 by answers per second", "answers per second", "p99 in ms", lines, log_y=True)],
        Table(("policy", "load", "answers/s", "p50 ms", "p99 ms"), rows),
        effort.command("knee"),
        str(effort.seed),
    )


def _attainment(effort: Effort) -> Section:
    runs = _runs(effort)
    slo_s = next(iter(runs.values()))[0].slo_s
    lines = [
        Series(policy.label, [(share, 100 * one.in_time) for share, one in zip(effort.loads, found, strict=True)])
        for policy, found in runs.items()
    ]
    rows = [(policy.label, *(f"{100 * one.in_time:.1f}" for one in found)) for policy, found in runs.items()]
    return Section(
        "attainment",
        "Answers in time against load",
        f"The same runs: the share of all queries answered within {1e3 * slo_s:.0f} ms. A load of 1 is what the "
        "pod can do in full steps.",
        [Plot("answers in time", "load", "per cent", lines, y_max=105)],
        Table(("policy, % by load", *(f"{share:g}" for share in effort.loads)), rows),
        effort.command("attainment"),
        str(effort.seed),
    )


def _fill(effort: Effort) -> Section:
    runs = _runs(effort)
    index = effort.loads.index(0.8)
    shown = {policy: found[index] for policy, found in runs.items() if policy.kind is not Kind.SEQUENTIAL}
    most = 1200
    lines = [
        Series(
            policy.label,
            [
                (tokens + 25.0, 100 * sum(count for at, count in one.batch_tokens if at == tokens) / _batches(one))
                for tokens in range(0, most, 50)
            ],
        )
        for policy, one in shown.items()
    ]
    rows = [
        (policy.label, f"{one.mean_batch_tokens:.0f}", f"{100 * one.utilisation:.1f}", f"{one.tokens_per_s:.0f}")
        for policy, one in shown.items()
    ]
    return Section(
        "fill",
        "How full batches are",
        "The same runs at a load of 0.8: tokens per batch. The saturation point is 600.",
        [Plot("batches by their tokens", "tokens", "per cent of batches", lines, bars=True)],
        Table(("policy", "mean tokens", "engine busy %", "tokens/s"), rows),
        effort.command("fill"),
        str(effort.seed),
    )


def _batches(one: Outcome) -> int:
    return max(1, sum(count for _, count in one.batch_tokens))


def _gpus(effort: Effort) -> Section:
    one = cases.capacity(find("a100-like"), Lengths())
    loads = (0.5, 2.0) if effort.quick else (0.1, 0.5, 1.0, 2.0, 4.0)
    needed = {policy: [pods_needed(policy, load * one, effort) for load in loads] for policy in _runs(effort)}
    lines = [
        Series(policy.label, list(zip((load * one for load in loads), map(float, pods), strict=True)))
        for policy, pods in needed.items()
    ]
    return Section(
        "gpus",
        "GPUs needed at equal service",
        "The fewest pods with which 99 % of all queries are answered within 100 ms.",
        [Plot("pods needed", "queries per second", "pods", lines, log_y=True)],
        Table(
            ("policy, pods by queries/s", *(f"{load * one:.0f}" for load in loads)),
            [(policy.label, *map(str, pods)) for policy, pods in needed.items()],
        ),
        effort.command("gpus"),
        str(effort.seed),
    )


def pods_needed(policy: Policy, rate: float, effort: Effort, in_time: float = 0.99) -> int:
    """The fewest pods that answer a share of a steady load in time; by doubling, then halving."""
    base = replace(
        cases.case("steady", seconds=2.0 if effort.quick else 4.0), arrivals=Steady(rate), slo_s=0.1, warm_up_s=1.0
    )

    def suffices(pods: int) -> bool:
        return simulate(replace(base, pods=pods), policy, effort.seed).in_time >= in_time

    most = 1
    while not suffices(most):
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if suffices(middle) else (middle, most)
    return most


LOAD_SECTIONS: dict[str, SectionMaker] = {"knee": _knee, "attainment": _attainment, "fill": _fill, "gpus": _gpus}
