"""Plots of the ORTHRUS paper's experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.mixed import orthrus
from loadtest.report.section import Plot, Series


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
