"""The formula of the scaler, in tokens and tokens per second."""

from __future__ import annotations

import pytest

from aggregator.wings.scaler.measuring.required_replicas import (
    DRAIN_S,
    UTILISATION,
    backlog_tokens,
    memory_pods,
    pod_throughput,
    required_replicas,
)


def required(arrival_tokens_per_s: float, backlog: float, pod_tokens_per_s: float, **in_memory: float) -> float:
    return required_replicas(
        arrival_tokens_per_s, backlog, pod_tokens_per_s, drain_s=DRAIN_S, utilisation=UTILISATION, **in_memory
    )


def test_replicas_keep_up_with_arrivals_and_work_the_backlog_off() -> None:
    assert required(3000.0, 0.0, 1000.0) == pytest.approx(4.0)
    assert required(3000.0, 90_000.0, 1000.0) == pytest.approx(8.0)


def test_texts_that_fill_the_memory_before_the_processors_ask_for_memory() -> None:
    """800 tokens/s, each held as 50 token-seconds, where a pod holds 10,000: four pods' memory, at 75 % of it."""
    filled = memory_pods(800.0, 50.0, 10_000.0)
    assert filled == pytest.approx(4.0)
    assert required(800.0, 0.0, 1000.0, in_memory=filled) == pytest.approx(4 / 0.75)
    assert required(8000.0, 0.0, 1000.0, in_memory=filled) == pytest.approx(8 / 0.75)
    assert required(800.0, 30_000.0, 1000.0, in_memory=filled) == pytest.approx(5 / 0.75)
    assert memory_pods(800.0, 0.0, 0.0) == 0.0


def test_backlog_is_what_was_not_fetched_and_what_is_held() -> None:
    assert backlog_tokens(100, 12.5, 300) == pytest.approx(1550.0)


def test_a_pods_throughput_is_the_mean_of_replicas_at_their_budgets() -> None:
    assert pod_throughput([(600, 0.020), (300, 0.030)]) == pytest.approx(20_000.0)
    assert pod_throughput([]) is None
