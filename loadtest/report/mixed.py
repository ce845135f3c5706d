"""A section about servers that embed and generate in the same steps."""

from __future__ import annotations

from loadtest.mixed import orthrus
from loadtest.mixed.plots import by_share, of_phases
from loadtest.report.load import Effort, SectionMaker
from loadtest.report.section import Section, Table
from loadtest.simulate.pool import Pool


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


MIXED_SECTIONS: dict[str, SectionMaker] = {"mixed": _mixed}
