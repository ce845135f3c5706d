"""A process that takes ever more is told from one that only warms up."""

from __future__ import annotations

import pytest

from tests.faults.memory_watch import growth_mib

pytestmark = pytest.mark.short


def test_warming_up_is_no_growth() -> None:
    assert growth_mib([50.0, 90.0, 100.0, 101.0, 99.0, 100.0, 300.0, 100.0, 100.0, 101.0, 100.0, 99.0]) == 0.0


def test_a_steady_rise_is() -> None:
    assert growth_mib([100.0 + number for number in range(100)]) == 50.0


def test_too_few_readings_tell_nothing() -> None:
    assert growth_mib([1.0, 2.0, 3.0]) == 0.0
