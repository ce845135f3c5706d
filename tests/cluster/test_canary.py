"""Two revisions of a model under one name, under load: a share each, promoted and taken back by one value."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import DEPLOYMENT, MODEL, NAME, Release, get
from tests.cluster.traffic import Calls, Traffic
from tests.cluster.values import synthetic
from tests.support.until import wait_until

OLD, NEW = "2026-10", "2026-11"
CALLS_PER_S, RECORDS_PER_S = 50.0, 50.0
SEEN_S = 20.0


def models(share: float | None, revision: str = OLD) -> list[dict[str, Any]]:
    """The one model, with a canary unless `share` is None."""
    model: dict[str, Any] = {"name": MODEL, "aliases": ["minilm"]}
    model["source"] = {"path": "/opt/model", "revision": revision}
    if share is not None:
        model["canary"] = {"share": share, "source": {"revision": NEW}, "autoscaling": {"maxReplicas": 2}}
    return [model]


@pytest.fixture(scope="module")
def release(new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    assert kafka.exit_code is None
    release = new_release(synthetic(kafka_on_node.BOOTSTRAP, models=models(None)))
    release.install()
    yield release
    release.uninstall()


async def test_a_revision_is_tried_taken_back_promoted_and_put_in_place_under_load(release: Release) -> None:
    wait_until(lambda: len(release.ready("aggregator")) >= 2, "both aggregators are ready")
    calls = Calls(f"{get('service', f'{NAME}-aggregator')['spec']['clusterIP']}:50051")
    traffic = Traffic(kafka_on_node.BOOTSTRAP, calls)
    await traffic.open()

    async def seen(share: float | None, revision: str = OLD) -> float:
        """The share of the new revision in the answers after an upgrade to these values."""
        await asyncio.to_thread(release.upgrade, {"models": models(share, revision)})
        await asyncio.to_thread(
            wait_until, lambda: not release.leaving("aggregator"), "the former aggregators are gone"
        )
        calls.revisions.clear()
        await asyncio.sleep(SEEN_S)
        assert calls.revisions.total() > 0.5 * SEEN_S * CALLS_PER_S
        assert calls.revisions.keys() <= {OLD, NEW}
        return calls.revisions[NEW] / calls.revisions.total()

    async with traffic.flowing(RECORDS_PER_S, CALLS_PER_S):
        assert await seen(None) == 0.0
        assert await seen(0.3) == pytest.approx(0.3, abs=0.06)
        assert {each["metadata"]["name"] for each in get("hpa")["items"]} >= {DEPLOYMENT, f"{DEPLOYMENT}-canary"}
        assert await seen(0.0) == 0.0, "taken back"
        assert await seen(1.0) == 1.0, "promoted"
        assert await seen(1.0, NEW) == 1.0, "the model's own servers have it, too"
        assert await seen(None, NEW) == 1.0, "the canary's servers are gone"
    verdict = await traffic.verdict()
    assert verdict.problems == ()
    assert calls.errors == []
