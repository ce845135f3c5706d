"""The paper's experiments: what the model is fitted to, and what follows from it."""

from __future__ import annotations

import pytest

from loadtest.lab.mixed import orthrus
from loadtest.lab.mixed.server import Task


def test_one_printed_figure_is_fitted_and_the_other_follows() -> None:
    assert orthrus.saturated(Task.EMBED) == pytest.approx(orthrus.SATURATED[Task.EMBED], rel=0.01)
    assert orthrus.saturated(Task.GENERATE) == pytest.approx(orthrus.SATURATED[Task.GENERATE], rel=0.05)


@pytest.mark.parametrize("row", orthrus.TABLE_1[1:], ids=lambda row: f"{row.share:.0%}")
def test_throughput_of_mixed_steps_is_as_printed(row: orthrus.Printed) -> None:
    assert orthrus.throughput(orthrus.MIXED, row.share) == pytest.approx(orthrus.normalized(*row.mixed), rel=0.15)


def test_the_gain_over_splits_spans_what_the_paper_prints() -> None:
    least = orthrus.throughput(orthrus.MIXED, 0.9) / orthrus.throughput(orthrus.SPLIT_1_3, 0.9)
    most = orthrus.throughput(orthrus.MIXED, 0.0) / orthrus.throughput(orthrus.SPLIT_1_3, 0.0)
    assert least == pytest.approx(1.28, rel=0.15)
    assert most == pytest.approx(4.52, rel=0.15)


def test_phases_end_sooner_by_about_what_is_printed() -> None:
    left = [
        orthrus.phase_s(orthrus.MIXED, share) / orthrus.phase_s(orthrus.SPLIT_1_3, share) for share in orthrus.PHASES
    ]
    assert sum(left) / len(left) == pytest.approx(1.0 - 0.43, rel=0.15)


def test_an_embedding_waits_less_under_the_floor_than_in_any_other_order_when_all_come_at_once() -> None:
    found = {fleet.name: orthrus.at_once(fleet).percentile_s(Task.EMBED, 99) for fleet in orthrus.FLEETS if fleet.both}
    assert min(found, key=found.__getitem__) == orthrus.MIXED.name
