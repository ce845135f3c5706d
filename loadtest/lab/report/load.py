"""Sections about a load that pods are to bear: the knee, attainment, fill, and how many GPUs it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from loadtest.lab.sweep import SWEPT_ON, best, settings
from loadtest.section import Plot, Section, Series, Table
from loadtest.simulate import cases
from loadtest.simulate.clock import find
from loadtest.simulate.load import Lengths, Steady
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import Pool, simulate

_CLOSE_LOAD = 0.7
"""From this load on the knee is shown once more, larger."""
_MOST_PODS = 512


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: `quick` is for a look, with few points, short runs and settings not swept."""

    quick: bool
    seed: int = 1

    @property
    def seconds(self) -> float:
        """Virtual seconds of a run."""
        return 3.0 if self.quick else 10.0

    @property
    def loads(self) -> tuple[float, ...]:
        """Shares of a pod's capacity."""
        if self.quick:
            return (0.2, 0.8, 1.1)
        return (0.02, 0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 1.0, 1.05, 1.1, 1.2)

    def settings(self, kind: Kind, scenario: Scenario) -> list[Policy]:
        """The settings of a kind that are tried; one in a `quick` look."""
        if not self.quick:
            return list(settings(kind, scenario))
        tokens = find(scenario.curve).saturation_point if kind is Kind.STATIC_TOKENS else 0
        return [Policy(kind, tokens=tokens, depth=1, wait_s=0.005)]

    def completed(self, kind: Kind, scenario: Scenario, pool: Pool) -> Policy:
        """The policy at its best setting for a scenario, found on other seeds than the one shown."""
        return self.settings(kind, scenario)[0] if self.quick else best(kind, scenario, pool)

    def command(self, section: str) -> str:
        """The command that makes a section again."""
        quick = " --quick" if self.quick else ""
        return f"python -m loadtest report --only {section} --seed {self.seed}{quick}"


Runs = dict[Policy, list[Outcome]]
SectionMaker = Callable[[Effort, Pool], Section]


def look(kind: Kind) -> int:
    """A policy's colour and mark, the same in every plot."""
    return list(Kind).index(kind)


@cache
def _runs(effort: Effort, pool: Pool) -> Runs:
    """One pod under every policy at its best setting, a run for each load; of several sections."""
    base = replace(cases.case("steady", seconds=effort.seconds), warm_up_s=0.1 * effort.seconds)
    one = cases.capacity(find(base.curve), base.lengths)
    scenarios = [replace(base, arrivals=Steady(share * one)) for share in effort.loads]
    policies = [effort.completed(kind, base, pool) for kind in Kind]
    rows = [(scenario, policy, effort.seed) for policy in policies for scenario in scenarios]
    outcomes = iter(pool.map(simulate, *zip(*rows, strict=True)))
    return {policy: [next(outcomes) for _ in scenarios] for policy in policies}


def _knee(effort: Effort, pool: Pool) -> Section:
    runs = _runs(effort, pool)
    lines = [
        Series(policy.label, [(one.throughput, 1e3 * one.p99_s) for one in found], look=look(policy.kind))
        for policy, found in runs.items()
    ]
    close = [
        Series(policy.label, points, look=look(policy.kind))
        for policy, found in runs.items()
        if (
            points := [
                (one.throughput, 1e3 * one.p99_s)
                for share, one in zip(effort.loads, found, strict=True)
                if share >= _CLOSE_LOAD and one.p99_s < 2.0 * one.slo_s
            ]
        )
    ]
    slo_ms = 1e3 * next(iter(runs.values()))[0].slo_s
    rows = [
        (
            f"{share:g}",
            *(f"{one.throughput:.0f}: {1e3 * one.p50_s:.1f}, {1e3 * one.p99_s:.1f}" for one in outcomes),
        )
        for share, *outcomes in zip(effort.loads, *runs.values(), strict=True)
    ]
    return Section(
        "knee",
        "Latency against throughput",
        "One pod, questions of 12 tokens, Poisson arrivals. Each point is a load; a policy is the better, the further "
        "right its line stays low. Every policy runs at the setting that does best at 80 % of what the pod can do.",
        [
            Plot("p99 by answers per second", "answers per second", "p99 in ms", lines, log_y=True),
            Plot(
                f"the same near the knee, from a load of {_CLOSE_LOAD:g} on, up to {2 * slo_ms:.0f} ms",
                "answers per second",
                "p99 in ms",
                close,
                limit=("latency target", slo_ms),
            ),
        ],
        Table(("load; answers/s: p50, p99 in ms", *(policy.label for policy in runs)), rows),
        effort.command("knee"),
        f"{effort.seed}; settings swept on {', '.join(map(str, SWEPT_ON))}",
    )


def _attainment(effort: Effort, pool: Pool) -> Section:
    runs = _runs(effort, pool)
    slo_s = next(iter(runs.values()))[0].slo_s
    lines = [
        Series(
            policy.label,
            [(share, 100 * one.in_time) for share, one in zip(effort.loads, found, strict=True)],
            look=look(policy.kind),
        )
        for policy, found in runs.items()
    ]
    rows = [
        (f"{share:g}", *(f"{100 * one.in_time:.1f}" for one in found))
        for share, *found in zip(effort.loads, *runs.values(), strict=True)
    ]
    return Section(
        "attainment",
        "Answers in time against load",
        f"The same runs: the share of all queries answered within {1e3 * slo_s:.0f} ms. A load of 1 is what the "
        "pod can do in full steps.",
        [Plot("answers in time", "load", "per cent", lines, y_max=105)],
        Table(("load; % in time", *(policy.label for policy in runs)), rows),
        effort.command("attainment"),
        str(effort.seed),
    )


def _fill(effort: Effort, pool: Pool) -> Section:
    runs = _runs(effort, pool)
    index = effort.loads.index(0.8)
    shown = {policy: found[index] for policy, found in runs.items() if policy.kind is not Kind.SEQUENTIAL}
    most = 1000
    lines = [
        Series(
            policy.label,
            [
                (float(tokens), 100 * sum(count for at, count in one.batch_tokens if at == tokens) / _batches(one))
                for tokens in range(0, most, 50)
            ],
            steps=True,
            look=look(policy.kind),
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
        "The same runs at a load of 0.8: tokens per batch, in bins of 50. The saturation point is 600.",
        [Plot("batches by their tokens", "tokens", "per cent of batches", lines)],
        Table(("policy", "mean tokens", "engine busy %", "tokens/s"), rows),
        effort.command("fill"),
        str(effort.seed),
    )


def _batches(one: Outcome) -> int:
    return max(1, sum(count for _, count in one.batch_tokens))


def _gpus(effort: Effort, pool: Pool) -> Section:
    one = cases.capacity(find("a100-like"), Lengths())
    loads = (0.5, 1.9) if effort.quick else (0.1, 0.5, 0.95, 1.9, 3.8)
    targets_s = (0.1,) if effort.quick else (0.1, 0.06)
    asked = [(kind, load * one, slo_s, effort) for slo_s in targets_s for kind in Kind for load in loads]
    found = iter(pool.map(pods_needed, *zip(*asked, strict=True)))
    needed = {(slo_s, kind): [next(found) for _ in loads] for slo_s in targets_s for kind in Kind}
    plots = [
        Plot(
            f"pods for 99 % within {1e3 * slo_s:.0f} ms",
            "queries per second",
            "pods",
            [
                Series(
                    kind.value,
                    [(load * one, float(count)) for load, count in zip(loads, counts, strict=True) if count],
                    look=look(kind),
                )
                for kind in Kind
                if any(counts := needed[slo_s, kind])
            ],
            log_y=True,
        )
        for slo_s in targets_s
    ]
    rows = [
        (kind.value, f"{1e3 * slo_s:.0f}", *(str(count or "none") for count in counts))
        for (slo_s, kind), counts in needed.items()
    ]
    return Section(
        "gpus",
        "Pods for the same latency target",
        "The fewest pods with which 99 % of a steady load's questions are answered in time under any of a policy's "
        f"settings; “none” where {_MOST_PODS} are too few too.",
        plots,
        Table(("policy", "target ms", *(f"{load * one:.0f}/s" for load in loads)), rows),
        effort.command("gpus"),
        str(effort.seed),
    )


def pods_needed(kind: Kind, rate: float, slo_s: float, effort: Effort, in_time: float = 0.99) -> int | None:
    """The fewest pods that answer a share of a steady load in time under any setting; by doubling, then halving.

    None when no number of pods up to `_MOST_PODS` does, as where a rule's batches grow with the load alone.
    """
    steady = cases.case("steady", seconds=0.6 * effort.seconds)
    base = replace(steady, arrivals=Steady(rate), slo_s=slo_s, warm_up_s=0.15 * effort.seconds)
    tried = effort.settings(kind, base)

    def suffices(pods: int) -> bool:
        for number, policy in enumerate(tried):
            if simulate(replace(base, pods=pods), policy, effort.seed).in_time >= in_time:
                tried.insert(0, tried.pop(number))  # likely to do with other numbers of pods too
                return True
        return False

    least = int(rate / cases.capacity(find(base.curve), base.lengths))  # too few: full steps could not carry it
    most = least + 1
    while not suffices(most):
        if most >= _MOST_PODS:
            return None
        least, most = most, min(2 * most, _MOST_PODS)
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if suffices(middle) else (middle, most)
    return most


LOAD_SECTIONS: dict[str, SectionMaker] = {"knee": _knee, "attainment": _attainment, "fill": _fill, "gpus": _gpus}
