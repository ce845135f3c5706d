"""The benchmark of mixed steps: the requests that it sends, and the figures that come of the answers."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.mixed.measure import share_figures, shares_plot
from loadtest.lab.bench.mixed.requests import Heard, Lengths, Task

LENGTHS = Lengths((32, 128), (8, 56))


def heard(per_s: float) -> Heard:
    return Heard(20.0, (10.0, 5.0), {Task.EMBED: [0.1] * round(10 * per_s), Task.GENERATE: []})


def make(figure: str, value: float, unit: str, notes: str) -> Figure:
    return Figure("mixed", figure, value, unit, 2, notes)


def test_sides_get_the_same_lengths_and_other_tokens() -> None:
    one, other = (list(islice(LENGTHS.drawn(0.5, 1, side), 50)) for side in ("mixed", "alternating"))
    assert [(each.task, len(each.token_ids), each.new_tokens) for each in one] == [
        (each.task, len(each.token_ids), each.new_tokens) for each in other
    ]
    assert all(each.token_ids != its.token_ids for each, its in zip(one, other, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_requests_generates(share: float) -> None:
    asked = list(islice(LENGTHS.drawn(share, 1), 2000))
    assert np.mean([each.task is Task.GENERATE for each in asked]) == pytest.approx(share, abs=0.04)
    assert all(8 <= each.new_tokens <= 56 and 32 <= len(each.token_ids) <= 128 for each in asked if each.new_tokens)
    assert all(4 <= len(each.token_ids) <= 200 for each in asked if each.task is Task.EMBED)


def test_ratios_are_taken_turn_by_turn_against_the_best_of_the_others_in_that_turn() -> None:
    turns = {"mixed": [100.0, 120.0], "alternating": [80.0, 100.0], "split": [100.0, 60.0]}
    found = {
        figure.figure: figure.value
        for figure in share_figures(make, {0.5: {name: list(map(heard, rates)) for name, rates in turns.items()}}, "")
    }
    assert found["mixed_50_per_cpu_s"] == 110.0
    assert found["mixed_50_per_s"] == 55.0
    assert found["split_50_embed_cpu"] == pytest.approx((10.0 + 1e4 / 600) / 2)
    assert found["mixed_50_over_split"] == pytest.approx((1.0 + 2.0) / 2)
    assert found["mixed_50_over_best"] == pytest.approx((1.0 + 1.2) / 2)


def test_over_several_shares_the_mean_over_split_counts_and_the_least_over_the_best() -> None:
    turns: dict[float, dict[str, list[Heard]]] = {
        share: {"mixed": [heard(rate)], "alternating": [heard(50.0)], "split": [heard(100.0)]}
        for share, rate in ((0.1, 120.0), (0.9, 180.0))
    }
    found = {figure.figure: figure.value for figure in share_figures(make, turns, "")}
    assert found["mixed_over_split"] == pytest.approx(1.5)
    assert found["least_over_best"] == pytest.approx(1.2)


def test_the_best_of_all_splits_is_computed_from_what_pure_loads_cost() -> None:
    pure = {"split": [Heard(20.0, (10.0, 10.0), {Task.EMBED: [0.1] * 1000, Task.GENERATE: [0.1] * 100})]}
    turns: dict[float, dict[str, list[Heard]]] = {
        share: dict.fromkeys(("mixed", "alternating", "split"), pure["split"]) for share in (0.0, 0.5, 1.0)
    }
    found = {figure.figure: figure.value for figure in share_figures(make, turns, "")}
    assert found["split_0_of_four"] == pytest.approx(2 * 100.0)  # all of them embed
    assert found["split_50_of_four"] == pytest.approx(0.5 * 3 / (0.5 * 0.1))  # three generate
    assert found["split_100_of_four"] == pytest.approx(2 * 10.0)
    assert shares_plot(share_figures(make, turns, "")).startswith("<svg")
