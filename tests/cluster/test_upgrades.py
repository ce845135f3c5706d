"""Values that change roll the pods that read them and no others; values that are wrong are refused in a clear line."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import NAME, Release, get, until
from tests.cluster.values import synthetic

COMPONENTS = ("aggregator", "model-server", "scaler")


@pytest.fixture(scope="module")
def release(new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    assert kafka.exit_code is None
    release = new_release(synthetic(kafka_on_node.BOOTSTRAP))
    release.install()
    yield release
    release.uninstall()


CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"aggregator": {"config": {"batching": {"max_held_tokens": 400_000}}}}, {"aggregator"}),
    ({"kafka": {"config": {"session_timeout_s": 20}}}, {"aggregator", "scaler"}),
    ({"modelServer": {"config": {"synthetic": {"fixed_s": 0.015}}}}, {"model-server"}),
    ({"scaler": {"config": {"policy": {"drain_s": 20}}}}, {"scaler"}),
    ({"aggregator": {"podAnnotations": {"team": "search"}}}, {"aggregator"}),
    ({"modelServer": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}, set()),
    ({"modelServer": {"env": [{"name": "OTEL_SDK_DISABLED", "value": "true"}]}}, {"model-server"}),
    ({"modelServer": {"autoscaling": {"maxReplicas": 5}}}, set()),
    ({"networkPolicy": {"enabled": False}}, set()),
]


@pytest.mark.parametrize(("change", "rolled"), CHANGES, ids=lambda each: str(each)[:50])
def test_a_change_rolls_the_pods_that_read_it(release: Release, change: dict[str, Any], rolled: set[str]) -> None:
    before = {name: set(release.ready(name)) for name in COMPONENTS}
    release.upgrade(change)
    until(lambda: all(len(release.pods(name)) == len(before[name]) for name in COMPONENTS), "the old pods are gone")
    after = {name: set(release.ready(name)) for name in COMPONENTS}
    assert {name for name in COMPONENTS if not before[name] & after[name]} == rolled
    assert {name for name in COMPONENTS if before[name] == after[name]} == set(COMPONENTS) - rolled


def test_the_autoscaler_takes_its_new_bounds(release: Release) -> None:
    release.upgrade({"modelServer": {"autoscaling": {"maxReplicas": 4}}})
    assert get("hpa", f"{NAME}-all-minilm-l6-v2")["spec"]["maxReplicas"] == 4


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kafka": {"bootstrapServer": "x:1"}}, "bootstrapServer"),
        ({"aggregator": {"config": {"batching": {"token_budgets": 1}}}}, "token_budgets"),
        ({"modelServer": {"replicas": "two"}}, "replicas"),
        ({"autoscaling": {"mode": "magic"}}, "mode"),
        ({"modelServer": {"autoscaling": {"minReplicas": 0}}}, "minReplicas 0"),
        ({"aggregator": {"autoscaling": {"maxReplicas": 50}}}, "partitions"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_wrong_values_are_refused_by_their_name(release: Release, values: dict[str, Any], named: str) -> None:
    assert named in release.refused(values)
