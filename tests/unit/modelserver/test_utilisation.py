"""The share of a device's operations that steps use."""

from __future__ import annotations

import pytest

from modelserver.metrics import Utilisation


def test_mfu_is_the_share_of_the_peak_that_recent_steps_used() -> None:
    found = Utilisation()
    assert found.values() == {}
    found.step(600, 0.002)
    assert found.values() == {}, "the peak is not known"
    found.per_token = 21.3e6 / 990e12  # MiniLM's matrices on an H200, by its data sheet
    assert found.values()[()] == pytest.approx(600 * 21.3e6 / 0.002 / 990e12)
    for _ in range(64):
        found.step(8192, 0.0034)
    assert found.values()[()] == pytest.approx(8192 * 21.3e6 / 0.0034 / 990e12), "the last 64 count"
