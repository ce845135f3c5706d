"""The collector, kept short."""

from __future__ import annotations

import gc

from k8s.process import heap


def test_the_collector_passes_over_what_was_there_for_as_long_as_it_is_completed() -> None:
    before = gc.get_threshold()
    with heap.frozen():
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() != before
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
