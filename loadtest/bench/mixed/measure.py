"""Two servers that embed and generate: in the same steps, in steps that alternate, and one for each task."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from loadtest.bench.figures import Figure
from loadtest.bench.mixed.requests import Clients, Heard, Lengths, Task
from loadtest.bench.mixed.sides import PAIRS, Model, Sides, mid_model, sides
from loadtest.bench.setting import Plan
from loadtest.bench.turns import Medians, in_turns
from loadtest.plots import Plot, Series, Spread, draw
from loadtest.texts.smollm2 import smollm2

MID, SMOLLM2 = "mixed", "mixed-smollm2"
CLIENTS = 64
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

    @property
    def medians(self) -> Medians:
        return Medians(self.name, self.plan.repeats, "", _BOUNDS)

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
                clients.closed_loop(CLIENTS, model.lengths.drawn(_HALF, 0), plan.mixed.warm_up_s, 0.0)
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
        bench.medians,
        found,
        f"{CLIENTS} clients, two servers of one thread, closed loop; ratios by CPU time of the busiest server",
    )
    (bench.plan.folder / f"{bench.name}-shares.svg").write_text(shares_plot(figures), encoding="utf-8")
    return figures


def shares_plot(figures: Iterable[Figure]) -> str:
    """Requests per second of processor time by share, of each pair."""
    points: dict[str, list[tuple[float, float]]] = {}
    spread: dict[str, dict[float, Spread]] = {}
    for each in figures:
        name, _, rest = each.figure.partition("_")
        share, _, what = rest.partition("_")
        if what == "per_cpu_s":
            points.setdefault(name, []).append((float(share), each.value))
            if each.spread:
                spread.setdefault(name, {})[float(share)] = each.spread
    series = [Series(name, sorted(found), spread=spread.get(name, {})) for name, found in points.items()]
    axis = "requests a second of the busiest server's processor time"
    return draw(Plot("Two servers", "% of the requests generate", axis, series, from_zero=True), "shares")


def share_figures(medians: Medians, found: Mapping[float, Mapping[str, Sequence[Heard]]], notes: str) -> list[Figure]:
    """Medians of each pair's turns, and of the ratios turn by turn."""
    figures: list[Figure] = []
    over_split: list[Figure] = []
    over_best: list[Figure] = []
    for share, turns in found.items():
        place = f"{100 * share:.0f}"
        for name, heard in turns.items():
            figures += [
                medians.of(f"{name}_{place}_{what}", unit, map(value, heard), notes) for what, unit, value in _OF_TURN
            ]
        rates = {name: [turn.per_cpu_s for turn in heard] for name, heard in turns.items()}
        of_mixed = rates.pop("mixed")
        best = [max(each) for each in zip(*rates.values(), strict=True)]
        over_split.append(medians.ratio(f"mixed_{place}_over_split", of_mixed, rates["split"], notes))
        over_best.append(medians.ratio(f"mixed_{place}_over_best", of_mixed, best, notes))
        figures += [over_split[-1], over_best[-1]]
    mean, least = statistics.mean(each.value for each in over_split), min(each.value for each in over_best)
    return [
        *figures,
        medians.of("mixed_over_split", "ratio", [mean], f"{notes}; mean over the shares"),
        medians.of("least_over_best", "ratio", [least], f"{notes}; the least over the shares"),
    ]


_OF_TURN: Sequence[tuple[str, str, Callable[[Heard], float]]] = (
    ("per_s", "request/s", lambda turn: turn.requests_per_s),
    ("per_cpu_s", "request/s", lambda turn: turn.per_cpu_s),
    ("embed_p50", "ms", lambda turn: 1e3 * turn.percentile_s(Task.EMBED, 50)),
    ("embed_p99", "ms", lambda turn: 1e3 * turn.percentile_s(Task.EMBED, 99)),
    ("between_p99", "ms", lambda turn: 1e3 * turn.between_percentile_s(99)),
)


def _overhead(bench: _Bench) -> list[Figure]:
    """One server for both tasks over one for a task, while there is only that."""
    notes = f"{CLIENTS} clients, one server of one thread, closed loop, by its CPU time"
    found: list[Figure] = []
    for task, share in ((Task.EMBED, 0.0), (Task.GENERATE, 1.0)):

        def one(name: str, repeat: int, share: float = share) -> Heard:
            return bench.loop(bench.sides.one_mixed if name == "both" else bench.sides.split, share, 40 + repeat)

        turns = bench.turns(task, ("both", "alone"), one)
        rates = {name: [turn.per_cpu_s for turn in each] for name, each in turns.items()}
        found += [bench.medians.of(f"one_{name}_{task}", "request/s", each, notes) for name, each in rates.items()]
        found.append(bench.medians.ratio(f"one_{task}_over_alone", rates["both"], rates["alone"], notes))
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
    return [
        bench.medians.of("embed_p99_mixed", "ms", p99_ms[0], notes),
        bench.medians.of("embed_p99_alone", "ms", p99_ms[1], notes),
        bench.medians.ratio("embed_p99_over_alone", p99_ms[0], p99_ms[1], notes),
    ]


PARTS: Mapping[str, Callable[[_Bench], list[Figure]]] = {
    "shares": _shares,
    "overhead": _overhead,
    "p99": _embed_p99,
}
