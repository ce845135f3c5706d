"""A small step gets one thread, and the engine has all of them again afterwards."""

from __future__ import annotations

import pytest

from modelserver.engines.engine import StepThreads


@pytest.mark.parametrize(("tokens", "calls"), [(1, [1, 4]), (99, [1, 4]), (100, []), (4096, [])])
def test_a_step_below_the_bound_gets_one_thread_and_another_all(tokens: int, calls: list[int]) -> None:
    used: list[int] = []
    threads = StepThreads(4, used.append)
    threads.threaded_tokens = 100
    with threads.of(tokens):
        assert used == calls[:1]
    assert used == calls


def test_a_small_step_that_fails_leaves_the_engine_all_threads() -> None:
    used: list[int] = []
    threads = StepThreads(4, used.append)
    threads.threaded_tokens = 100
    with pytest.raises(RuntimeError, match="no memory"), threads.of(10):
        raise RuntimeError("no memory")
    assert used == [1, 4]
