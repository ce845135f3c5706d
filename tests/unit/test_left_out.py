"""Tests that expect vLLM's build for CPUs are left out, and counted, where the one for GPUs is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


class Item:
    """A test with these markers."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._markers else None


@pytest.mark.parametrize(("on_gpu", "left"), [(True, [1, 3]), (False, [0, 1, 2, 3])])
def test_tests_for_cpus_are_left_out_with_the_engine_for_gpus(
    on_gpu: bool, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "ON_GPU", on_gpu)
    deselected: list[Any] = []

    def deselect(*, items: list[Any]) -> None:
        deselected.extend(items)

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselect))
    tests: list[Any] = [Item("vllm"), Item("gpu"), Item("vllm", "slow"), Item()]
    items = list(tests)
    conftest.pytest_collection_modifyitems(config, items)
    assert items == [tests[number] for number in left]
    assert deselected == [each for each in tests if each not in items]
    assert bool(conftest.pytest_report_header()) is on_gpu
