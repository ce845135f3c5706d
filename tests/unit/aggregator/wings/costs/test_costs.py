"""Whose the engines' time and tokens are."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.errors import Code
from aggregator.scheduler.work_item import Priority, Query, WorkItem
from aggregator.wings.costs.tenants import MAX_NAMED, OTHER, TenantCosts
from k8s.pod.metrics_buffer import MetricsBuffer


def item(tokens: int, *tenants: str) -> WorkItem:
    waiters = [Query(None, 0, Priority.DEFAULT, tenant, 0.0, 1.0) for tenant in tenants]
    return WorkItem(bytes(4 * tokens), tokens, waiters, Priority.DEFAULT)


def counted(buffer: MetricsBuffer, name: str) -> dict[tuple[str, ...], float]:
    metric = next(metric for metric in buffer.collect().metrics if metric.name == name)
    points: list[Any] = list(metric.data.data_points)
    return {tuple(point.attributes.values()): point.value for point in points}


def test_a_batch_is_divided_by_the_tokens_of_its_tenants() -> None:
    buffer = MetricsBuffer()
    TenantCosts(buffer).computed("m", "embed", [item(1, "a"), item(2, "b"), item(4, "c"), item(3, "c")], {}, 0.5)
    assert counted(buffer, "tokenbatch.tokens") == {
        ("a", "m", "embed"): 1,
        ("b", "m", "embed"): 2,
        ("c", "m", "embed"): 7,
    }
    assert counted(buffer, "tokenbatch.engine") == {
        ("a", "m", "embed"): pytest.approx(0.05),
        ("b", "m", "embed"): pytest.approx(0.1),
        ("c", "m", "embed"): pytest.approx(0.35),
    }


def test_those_who_wait_for_one_computation_have_equal_parts_of_it() -> None:
    buffer = MetricsBuffer()
    TenantCosts(buffer).computed("m", "embed", [item(6, "a", "b", "a"), item(2, "b")], {}, 0.8)
    assert counted(buffer, "tokenbatch.tokens") == {("a", "m", "embed"): 4, ("b", "m", "embed"): 4}
    assert sum(counted(buffer, "tokenbatch.engine").values()) == pytest.approx(0.8)


def test_an_input_that_the_engine_never_saw_costs_nothing() -> None:
    buffer = MetricsBuffer()
    costs = TenantCosts(buffer)
    costs.computed("m", "embed", [item(5, "bad"), item(2, "good")], {0: Code.OUT_OF_RANGE}, 0.3)
    costs.computed("m", "embed", [item(5, "bad")], {0: Code.OUT_OF_RANGE}, 0.0)
    assert counted(buffer, "tokenbatch.engine") == {("good", "m", "embed"): pytest.approx(0.3)}


def test_what_failed_in_the_engine_is_nobodys_and_the_sum_holds() -> None:
    buffer = MetricsBuffer()
    costs = TenantCosts(buffer)
    costs.computed("m", "embed", [item(3, "a"), item(1, "b")], {0: Code.INTERNAL}, 0.4)
    costs.computed("m", "embed", [item(3, "a")], {0: Code.INTERNAL}, 0.2)
    assert counted(buffer, "tokenbatch.engine") == {
        ("nobody", "m", "embed"): pytest.approx(0.5),
        ("b", "m", "embed"): pytest.approx(0.1),
    }
    assert counted(buffer, "tokenbatch.tokens") == {("b", "m", "embed"): 1}


def test_a_hundred_tenants_have_names_and_the_rest_are_one() -> None:
    buffer = MetricsBuffer()
    costs = TenantCosts(buffer)
    for number in range(250):
        costs.count("m", "generate", f"tenant {number}", 1)
    for number in range(250):
        costs.charge("m", "generate", costs.account(f"tenant {number}"), 2.0)
    for name, each in (("tokenbatch.tokens", 1), ("tokenbatch.engine", 2.0)):
        found = counted(buffer, name)
        assert len(found) == MAX_NAMED + 1
        assert found.pop((OTHER, "m", "generate")) == 150 * each
        assert found == {(f"tenant {number}", "m", "generate"): each for number in range(100)}


def test_a_tenant_with_a_rate_keeps_its_name_whoever_comes_before_it() -> None:
    buffer = MetricsBuffer()
    costs = TenantCosts(buffer, {"pays": 100.0})
    for number in range(200):
        costs.count("m", "generate", f"made up {number}", 1)
    costs.count("m", "generate", "pays", 3)
    found = counted(buffer, "tokenbatch.tokens")
    assert found["pays", "m", "generate"] == 3
    assert len(found) == MAX_NAMED + 1
