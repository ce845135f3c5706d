"""Two servers that embed and generate: in the same steps, in steps that alternate, and one for each task."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.mixed.requests import Clients, Heard, Lengths, Task
from loadtest.lab.bench.mixed.sides import PAIRS, Model, Sides, mid_model, sides
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.turns import in_turns
from loadtest.plots import draw_alone
from loadtest.section import Plot, Series
from loadtest.texts.smollm2 import smollm2

MID, SMOLLM2 = "mixed", "mixed-smollm2"
CLIENTS = 64
PHASES = (0.9, 0.5, 0.1)
_HALF = 0.5
_NOISE = 0.06
"""Of a turn's rate: what the ratio to the best of the others may lack."""
_BOUNDS = {
    "mixed_over_split": "≥ 1.4",
    "least_over_best": f"≥ {1.0 - _NOISE:g}",
    "one_embed_over_alone": "≥ 0.97",
    "one_generate_over_alone": "≥ 0.97",
    "embed_p99_over_alone": "≤ 2",
}


@dataclass(frozen=True, slots=True)
class _Bench:
    """What all experiments need."""

    name: str
    plan: Plan
    lengths: Lengths
    sides: Sides

    def figure(self, figure: str, value: float, unit: str, notes: str) -> Figure:
        return Figure(self.name, figure, value, unit, self.plan.repeats, notes, _BOUNDS.get(figure, ""))

    def turns(self, what: str, names: Sequence[str], one: Callable[[str, int], Heard]) -> dict[str, list[Heard]]:
        """Each side in turn; `one` gets its name and the number of the turn."""
        sides = {name: partial(one, name) for name in names}
        said = "{0.per_cpu_s:.0f} requests per CPU second".format
        return in_turns(f"{self.name}, {what}", self.plan.repeats, sides, said)

    def loop(self, clients: Clients, share: float, seed: int, side: str = "", callers: int = CLIENTS) -> Heard:
        asked = self.lengths.drawn(share, seed, side)
        return clients.closed_loop(callers, asked, self.plan.mixed.warm_up_s, self.plan.mixed.seconds)


def measure_mid(plan: Plan) -> list[Figure]:
    """A random model of 20 million parameters."""
    return _measured(MID, plan, Model(mid_model(plan), Lengths((32, 128), (8, 56))))


def measure_smollm2(plan: Plan) -> list[Figure]:
    """SmolLM2, with shorter outputs."""
    return _measured(SMOLLM2, plan, Model(smollm2(), Lengths((32, 128), (8, 24))))


def _measured(name: str, plan: Plan, model: Model) -> list[Figure]:
    with sides(plan, model) as running:
        bench = _Bench(name, plan, model.lengths, running)
        for pair in PAIRS:
            with running.pair(pair) as clients:
                clients.all_of(CLIENTS, islice(model.lengths.drawn(_HALF, 0), 2 * CLIENTS))
        found: list[Figure] = []
        for part in plan.mixed.parts:
            found += PARTS[part](bench)
        return found


def _shares(bench: _Bench) -> list[Figure]:
    """Requests a second of each pair by the share of generations."""
    found: dict[float, dict[str, list[Heard]]] = {}
    for share in bench.plan.mixed.shares:

        def one(name: str, repeat: int, share: float = share) -> Heard:
            with bench.sides.pair(name) as clients:
                return bench.loop(clients, share, 1 + repeat, name)

        found[share] = bench.turns(f"{share:.0%} generations", PAIRS, one)
    figures = share_figures(
        bench.figure,
        found,
        f"{CLIENTS} clients, two servers of one thread, closed loop; ratios by CPU time of the busiest server",
    )
    (bench.plan.folder / f"{bench.name}-shares.svg").write_text(shares_plot(figures), encoding="utf-8")
    return figures


def shares_plot(figures: Iterable[Figure]) -> str:
    """Requests per second of processor time by share, of each pair and of the best split of four servers."""
    points: dict[str, list[tuple[float, float]]] = {}
    for each in figures:
        name, _, rest = each.figure.partition("_")
        share, _, what = rest.partition("_")
        if what == "per_cpu_s":
            points.setdefault(name, []).append((float(share), each.value))
        elif what == "of_four":
            points.setdefault("best split of four, computed", []).append((float(share), each.value))
    series = [Series(name, sorted(found), dashed=name not in PAIRS) for name, found in points.items()]
    axis = "requests a second of the busiest server's processor time"
    return draw_alone(Plot("Two servers", "% of the requests generate", axis, series, from_zero=True), "shares")


Make = Callable[[str, float, str, str], Figure]


def share_figures(make: Make, found: Mapping[float, Mapping[str, Sequence[Heard]]], notes: str) -> list[Figure]:
    """Medians of each pair's turns, and of the ratios turn by turn.

    With both pure loads, also the best of the splits of four servers: computed, as if each of them spent on a request
    what it spends on a pure load.
    """
    figures: list[Figure] = []
    pure_s = {task: _cpu_s(found[share], task) for task, share in _PURE.items() if share in found}
    over_split: list[float] = []
    over_best: list[float] = []
    for share, turns in found.items():
        place = f"{100 * share:.0f}"
        for name, heard in turns.items():
            figures += [
                make(f"{name}_{place}_{what}", statistics.median(map(value, heard)), unit, notes)
                for what, unit, value in _OF_TURN
            ]
        figures += [make(f"split_{place}_{task}_cpu", 1e3 * _cpu_s(turns, task), "ms/request", notes) for task in Task]
        if len(pure_s) == len(_PURE):
            figures.append(make(f"split_{place}_of_four", best_split(share, pure_s), "request/s", notes))
        rates = {name: [turn.per_cpu_s for turn in heard] for name, heard in turns.items()}
        of_mixed = rates.pop("mixed")
        over_split.append(statistics.median(one / other for one, other in zip(of_mixed, rates["split"], strict=True)))
        best = [max(each) for each in zip(*rates.values(), strict=True)]
        over_best.append(statistics.median(one / other for one, other in zip(of_mixed, best, strict=True)))
        figures.append(make(f"mixed_{place}_over_split", over_split[-1], "ratio", notes))
        figures.append(make(f"mixed_{place}_over_best", over_best[-1], "ratio", notes))
    return [
        *figures,
        make("mixed_over_split", statistics.mean(over_split), "ratio", f"{notes}; mean over the shares"),
        make("least_over_best", min(over_best), "ratio", f"{notes}; the least over the shares"),
    ]


_PURE = {Task.EMBED: 0.0, Task.GENERATE: 1.0}
"""The share of generations at which there is only this task."""


def _cpu_s(turns: Mapping[str, Sequence[Heard]], task: Task) -> float:
    """Of the split pair: what the task's server spends on one of its requests."""
    server = list(Task).index(task)
    return statistics.median(turn.cpu_s[server] / max(1, len(turn.latency_s[task])) for turn in turns["split"])


def best_split(share: float, request_s: Mapping[Task, float], servers: int = 4) -> float:
    """The rate of two servers, if `servers` are split as is best for this share; `request_s`: of one request."""

    def rate(embedding: int) -> float:
        needed_s = (
            ((1.0 - share) * request_s[Task.EMBED], embedding),
            (share * request_s[Task.GENERATE], servers - embedding),
        )
        return min(count / seconds for seconds, count in needed_s if seconds)

    return 2 / servers * max(map(rate, range(servers + 1)))


_OF_TURN: Sequence[tuple[str, str, Callable[[Heard], float]]] = (
    ("per_s", "request/s", lambda turn: turn.requests_per_s),
    ("per_cpu_s", "request/s", lambda turn: turn.per_cpu_s),
    ("embed_p50", "ms", lambda turn: 1e3 * turn.percentile_s(Task.EMBED, 50)),
    ("embed_p99", "ms", lambda turn: 1e3 * turn.percentile_s(Task.EMBED, 99)),
    ("between_p99", "ms", lambda turn: 1e3 * turn.between_percentile_s(99)),
)


def _at_once(bench: _Bench) -> list[Figure]:
    """Generations and then as many embeddings, all at once: how long each takes."""
    count = bench.plan.mixed.at_once

    def one(name: str, repeat: int) -> Heard:
        rng, ids = np.random.default_rng(repeat), np.random.default_rng([repeat, *name.encode()])
        asked = [bench.lengths.one(task, rng, ids) for task in (Task.GENERATE, Task.EMBED) for _ in range(count)]
        with bench.sides.pair(name) as clients:
            return clients.all_of(len(asked), asked)

    found = bench.turns("all at once", PAIRS, one)
    (bench.plan.folder / f"{bench.name}-at-once.svg").write_text(_distributions(found, count), encoding="utf-8")
    notes = f"{count} generations and then {count} embeddings at once"
    return [
        bench.figure(
            f"{name}_at_once_{task}_p{percent}",
            statistics.median(turn.percentile_s(task, percent) for turn in turns),
            "s",
            notes,
        )
        for name, turns in found.items()
        for task in Task
        for percent in (50, 99)
    ]


def _distributions(found: Mapping[str, Sequence[Heard]], count: int) -> str:
    """Of the first turn."""
    percents = np.arange(0, 101, 2)
    series = [
        Series(
            f"{name}: {task}",
            list(zip(np.percentile(turns[0].latency_s[task], percents).tolist(), percents.tolist(), strict=True)),
            look=look,
            dashed=task is Task.EMBED,
        )
        for look, (name, turns) in enumerate(found.items())
        for task in Task
    ]
    title = f"{count} generations, then {count} embeddings, all at once"
    return draw_alone(Plot(title, "seconds", "% answered", series), "at-once")


def _phases(bench: _Bench) -> list[Figure]:
    """Three phases, one after the other: time to finish them."""
    count = bench.plan.mixed.phase

    def one(name: str, repeat: int) -> list[float]:
        with bench.sides.pair(name) as clients:
            phases = [list(islice(bench.lengths.drawn(share, 20 + repeat, name), count)) for share in PHASES]
            return [clients.all_of(CLIENTS, asked).busiest_cpu_s for asked in phases]

    sides = {name: partial(one, name) for name in PAIRS}
    found = in_turns(f"{bench.name}, phases", bench.plan.repeats, sides, "{} s".format)
    shares = ", ".join(f"{share:.0%}" for share in PHASES)
    notes = f"{CLIENTS} clients, {count} requests a phase ({shares} generations); CPU time of the busiest server"
    seconds = {name: list(map(statistics.median, zip(*turns, strict=True))) for name, turns in found.items()}
    bars = [
        Series(f"{share:.0%} generations", [(float(x), each[place]) for x, each in enumerate(seconds.values())])
        for place, share in enumerate(PHASES)
    ]
    plot = Plot(f"Time to finish {count} requests", "", "s", bars, bars=True, x_names=PAIRS)
    (bench.plan.folder / f"{bench.name}-phases.svg").write_text(draw_alone(plot, "phases"), encoding="utf-8")
    return [
        *(
            bench.figure(f"{name}_phase_{100 * share:.0f}", each, "s", notes)
            for name, values in seconds.items()
            for share, each in zip(PHASES, values, strict=True)
        ),
        *(
            bench.figure(f"phases_over_{name}", sum(seconds["mixed"]) / sum(seconds[name]), "ratio", notes)
            for name in PAIRS[1:]
        ),
    ]


def _overhead(bench: _Bench) -> list[Figure]:
    """One server for both tasks over one for a task, while there is only that."""
    notes = f"{CLIENTS} clients, one server of one thread, closed loop, by its CPU time"
    found: list[Figure] = []
    for task, share in ((Task.EMBED, 0.0), (Task.GENERATE, 1.0)):

        def one(name: str, repeat: int, share: float = share) -> Heard:
            return bench.loop(bench.sides.one_mixed if name == "both" else bench.sides.split, share, 40 + repeat)

        turns = bench.turns(task, ("both", "alone"), one)
        rates = {name: [turn.per_cpu_s for turn in each] for name, each in turns.items()}
        ratio = statistics.median(both / alone for both, alone in zip(rates["both"], rates["alone"], strict=True))
        found += [
            bench.figure(f"one_{name}_{task}", statistics.median(each), "request/s", notes)
            for name, each in rates.items()
        ]
        found.append(bench.figure(f"one_{task}_over_alone", ratio, "ratio", notes))
    return found


def _embed_p99(bench: _Bench) -> list[Figure]:
    """Embeddings beside generations, and at the same rate on a server that only embeds."""
    mixed: list[Heard] = []
    alone: list[Heard] = []
    for repeat in range(bench.plan.repeats):
        mixed.append(bench.loop(bench.sides.one_mixed, _HALF, 60 + repeat, callers=CLIENTS // 2))
        asked = bench.lengths.drawn(0.0, 60 + repeat)
        timing = bench.plan.mixed
        rate = mixed[-1].per_s(Task.EMBED)
        alone.append(bench.sides.split.at_rate(rate, asked, timing.warm_up_s, timing.seconds))
    p99_ms = [[1e3 * turn.percentile_s(Task.EMBED, 99) for turn in turns] for turns in (mixed, alone)]
    notes = f"one server of one thread, {CLIENTS // 2} clients with {_HALF:.0%} generations; alone: the same rate"
    ratio = statistics.median(one / other for one, other in zip(*p99_ms, strict=True))
    return [
        bench.figure("embed_p99_mixed", statistics.median(p99_ms[0]), "ms", notes),
        bench.figure("embed_p99_alone", statistics.median(p99_ms[1]), "ms", notes),
        bench.figure("embed_p99_over_alone", ratio, "ratio", notes),
    ]


PARTS: Mapping[str, Callable[[_Bench], list[Figure]]] = {
    "shares": _shares,
    "at-once": _at_once,
    "phases": _phases,
    "overhead": _overhead,
    "p99": _embed_p99,
}
