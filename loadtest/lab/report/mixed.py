"""A section about servers that embed and generate in the same steps, and its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.lab.mixed import orthrus
from loadtest.lab.report.load import Effort, SectionMaker
from loadtest.section import Plot, Section, Series, Table
from loadtest.simulate.simulation import Pool


def _mixed(effort: Effort, pool: Pool) -> Section:
    shares = tuple(row.share for row in orthrus.TABLE_1) if effort.quick else orthrus.SHARES
    fleets = orthrus.FLEETS
    asked = [(fleet, share, effort.seed) for fleet in fleets for share in shares]
    values = iter(pool.map(orthrus.throughput, *zip(*asked, strict=True)))
    found = {fleet.name: [(share, next(values)) for share in shares] for fleet in fleets}
    asked = [(fleet, share, effort.seed) for fleet in fleets for share in orthrus.PHASES]
    seconds = iter(pool.map(orthrus.phase_s, *zip(*asked, strict=True)))
    phases = {fleet.name: [next(seconds) for _ in orthrus.PHASES] for fleet in fleets}
    rows = [
        (name, *(f"{value:.1f}" for _, value in points), *(f"{value:.1f}" for value in phases[name]))
        for name, points in found.items()
    ]
    columns = (
        "servers; normalized requests/s, then s",
        *(f"{share:.0%}" for share in shares),
        *(f"phase of {share:.0%}" for share in orthrus.PHASES),
    )
    return Section(
        "mixed",
        "Embeddings and generations in the same steps",
        "The experiments of the ORTHRUS paper: four A100 with Mistral 7B, embeddings of 128 tokens, generations of 512 "
        "tokens after 128. Steps are composed by the model server's own rule (floor), by the paper's, by turns, or on "
        "cards that do one of the two. Percentages are of requests that generate; one of them counts as 1.7 "
        "embeddings.",
        [by_share(found), of_phases(phases)],
        Table(columns, rows),
        effort.command("mixed"),
        str(effort.seed),
    )


def by_share(found: Mapping[str, Sequence[tuple[float, float]]]) -> Plot:
    """Throughput (share of generations, normalized requests a second) of each fleet, and what is printed."""
    printed = {
        "ORTHRUS, printed": [(100 * row.share, orthrus.normalized(*row.mixed)) for row in orthrus.TABLE_1],
        "split 1:3, printed": [(100 * row.share, orthrus.normalized(*row.split)) for row in orthrus.TABLE_1],
    }
    looks = {"ORTHRUS, printed": 0, "split 1:3, printed": list(found).index(orthrus.SPLIT_1_3.name)}
    series = [Series(name, [(100 * share, value) for share, value in points]) for name, points in found.items()]
    series += [Series(name, points, dashed=True, look=looks[name]) for name, points in printed.items()]
    title = "Four A100, 512 clients: embeddings and 1.7 times generations a second"
    return Plot(title, "% of the requests generate", "normalized requests/s", series, from_zero=True)


def of_phases(found: Mapping[str, Sequence[float]]) -> Plot:
    """Seconds of 1,000 requests, by fleet and phase."""
    series = [
        Series(f"{share:.0%} generations", [(float(x), seconds[place]) for x, seconds in enumerate(found.values())])
        for place, share in enumerate(orthrus.PHASES)
    ]
    return Plot("Time to finish 1,000 requests on four A100", "", "s", series, bars=True, x_names=list(found))


MIXED_SECTIONS: dict[str, SectionMaker] = {"mixed": _mixed}
