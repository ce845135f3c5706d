"""Two revisions of a model under one name, under load: a share each, promoted and taken back by one value."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import DEPLOYMENT, MODEL, Release, get
from tests.cluster.traffic import Calls, checked
from tests.cluster.values import synthetic
from tests.support.until import until_beside, wait_until

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
def release(new_release: NewRelease) -> Generator[Release]:
    with new_release(synthetic(kafka_on_node.BOOTSTRAP, models=models(None))).installed() as release:
        yield release


async def test_a_revision_is_tried_taken_back_promoted_and_replaces_under_load(release: Release) -> None:
    wait_until(lambda: len(release.ready("aggregator")) >= 2, "both aggregators are ready")

    async def seen(calls: Calls, share: float | None, revision: str = OLD) -> float:
        """The share of the new revision in the answers after an upgrade to these values."""
        await asyncio.to_thread(release.upgrade, {"models": models(share, revision)})
        await until_beside(lambda: not release.leaving("aggregator"), "the former aggregators are gone")
        calls.revisions.clear()
        await asyncio.sleep(SEEN_S)
        assert calls.revisions.total() > 0.5 * SEEN_S * CALLS_PER_S
        assert calls.revisions.keys() <= {OLD, NEW}
        return calls.revisions[NEW] / calls.revisions.total()

    async with (
        checked(kafka_on_node.BOOTSTRAP, release.address()) as traffic,
        traffic.flowing(RECORDS_PER_S, CALLS_PER_S),
    ):
        calls = traffic.calls
        assert await seen(calls, None) == 0.0
        assert await seen(calls, 0.3) == pytest.approx(0.3, abs=0.06)
        assert {each["metadata"]["name"] for each in get("hpa")["items"]} >= {DEPLOYMENT, f"{DEPLOYMENT}-canary"}
        assert await seen(calls, 0.0) == 0.0, "taken back"
        assert await seen(calls, 1.0) == 1.0, "promoted"
        assert await seen(calls, 1.0, NEW) == 1.0, "the model's own servers have it, too"
        assert await seen(calls, None, NEW) == 1.0, "the canary's servers are gone"
