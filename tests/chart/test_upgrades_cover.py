"""Every value that the chart documents is changed by an upgrade on the real cluster, and its effect looked at there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.rendering import CHART
from tests.cluster.release import merge
from tests.cluster.test_upgrades import CHANGES
from tests.cluster.upgrades.stages import STAGES, set_by
from tests.cluster.values import synthetic, vllm

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
NO_EFFECT = {"enabled", "global"}  # Helm's own; nothing of this chart reads it
ELSEWHERE = {
    "models.canary",  # tests/cluster/test_canary.py looks at it under load
    # There is no object store and no GPU: tests/chart/test_batches.py and test_sharing.py look at what is rendered.
    *("batches.config", "batches.enabled", "batches.store", "batches.volume"),
    *("networkPolicy.store", "networkPolicy.storePorts", "modelServer.gpu.serversPerGpu"),
}


def documented(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all values that are no groups; what may be said again for one model stands under modelServer alone."""
    schema = resolved(schema.get("items", schema) if path == "models" else schema)
    names = set(schema.get("properties", ()))
    if not names or "null" in schema["type"]:
        yield path
        return
    if path == "models":
        names -= set(SCHEMA["definitions"]["ModelServer"]["properties"])
    for name in names:
        part = schema["properties"][name]
        inner = f"{path}.{name}" if path else name
        if "settings." in part.get("$ref", ""):
            yield inner
        else:
            yield from documented(part, inner)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


DOCUMENTED = set(documented(SCHEMA)) - NO_EFFECT - ELSEWHERE
SHOWN = set().union(*(set_by(stage) for stage in STAGES))


def test_every_value_is_known_by_its_path() -> None:
    assert {"kafka.bootstrapServers", "models.source.hub", "modelServer.image.tag", "scaler.config"} <= DOCUMENTED


def test_the_effect_of_every_documented_value_is_looked_at() -> None:
    unseen = DOCUMENTED - SHOWN
    assert not unseen


def test_only_documented_values_are_looked_at() -> None:
    unknown = SHOWN - DOCUMENTED
    assert not unknown


def test_every_effect_is_of_a_value_that_its_upgrade_gives() -> None:
    for stage in STAGES:
        for effect in stage.effects:
            stage.given(effect.value)


GIVEN = {
    "synthetic": synthetic("kafka:9092"),
    "vllm": vllm("kafka:9092"),
    **{str(values): values for values, _ in CHANGES},
    **{stage.name: stage.values for stage in STAGES},
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_the_cluster_is_given_fits_the_schema(name: str) -> None:
    """Minutes before the cluster is there to refuse it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    merge(values, deepcopy(GIVEN[name]))
    jsonschema.validate(values, SCHEMA, jsonschema.Draft7Validator)
