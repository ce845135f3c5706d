"""A canary has servers of its own beside its model's, and a share of what comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import ENV_PREFIX as AGGREGATOR
from aggregator.settings.aggregator import CanarySettings
from aggregator.wings.scaler.settings import ENV_PREFIX as SCALER
from aggregator.wings.scaler.settings import ScalerSettings
from k8s.pod.settings import load
from tests.chart.rendering import CHART, find, render, run, template

NAME, MODEL, ON_TRIAL = "t-tokenbatch-minilm", "minilm", "t-tokenbatch-minilm-canary"
CANARY = {"share": 0.25, "source": {"revision": "b"}, "autoscaling": {"maxReplicas": 3}}


def models(**of_model: object) -> tuple[str, str]:
    model = {"name": MODEL, "aliases": ["mini"], "source": {"hub": "house/minilm", "revision": "a"}, **of_model}
    return "--set-json", f"models={json.dumps([model])}"


def test_it_has_its_own_servers_with_what_it_leaves_unsaid_of_its_model() -> None:
    objects = render("default", *models(canary=CANARY))
    for name, revision in ((NAME, "a"), (ON_TRIAL, "b")):
        told = yaml.safe_load(find(objects, "ConfigMap", name)["data"]["modelserver.yaml"])
        assert told["model"] == {"name": MODEL, "path": "house/minilm", "revision": revision}
        selector = find(objects, "Deployment", name)["spec"]["selector"]["matchLabels"]
        assert find(objects, "Service", name)["spec"]["selector"] == selector
        assert selector["tokenbatch/model"] == name.removeprefix("t-tokenbatch-")
    most = [find(objects, "HorizontalPodAutoscaler", name)["spec"]["maxReplicas"] for name in (NAME, ON_TRIAL)]
    assert most == [8, 3]


def test_aggregators_and_the_scaler_are_told_of_its_share(tmp_path: Path) -> None:
    objects = render("default", *models(canary=CANARY))
    for kind in ("aggregator", "scaler"):
        text = find(objects, "ConfigMap", f"t-tokenbatch-{kind}")["data"][f"{kind}.yaml"]
        (tmp_path / kind).write_text(text, encoding="utf-8")
    (model,) = load(AllSettings, AGGREGATOR, tmp_path / "aggregator").models
    assert model.canary == CanarySettings(revision="b", share=0.25)
    assert model.servers == (f"k8s://{NAME}.ns:50061", f"k8s://{ON_TRIAL}.ns:50061")
    scaled = load(ScalerSettings, SCALER, tmp_path / "scaler").models
    assert [(each.name, each.demand_of, each.deployment, each.share) for each in scaled] == [
        (MODEL, "", NAME, 0.75),
        ("minilm-canary", MODEL, ON_TRIAL, 0.25),
    ]


@pytest.mark.parametrize("share", [0, 1])
def test_one_value_takes_it_back_or_promotes_it_and_rolls_no_model_server(share: int) -> None:
    before, after = (render("default", *models(canary=CANARY | {"share": each})) for each in (0.5, share))
    for name in (NAME, ON_TRIAL):
        assert find(before, "Deployment", name) == find(after, "Deployment", name)
    told = yaml.safe_load(find(after, "ConfigMap", "t-tokenbatch-aggregator")["data"]["aggregator.yaml"])
    assert told["models"][0]["canary"] == {"revision": "b", "share": share}


@pytest.mark.parametrize(
    ("canary", "said"),
    [
        ({"share": 0.5}, "a canary without source.revision"),
        ({**CANARY, "share": 1.5}, "share"),
        ({"source": {"revision": "b"}}, "share"),
    ],
)
def test_what_cannot_be_is_refused(canary: dict[str, object], said: str) -> None:
    done = template(4, "default", *models(canary=canary))
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("share", [{}, {"share": None}])
def test_a_canary_without_a_share_is_refused_past_the_schema_too(share: dict[str, object]) -> None:
    canary = {"source": {"revision": "b"}, **share}
    done = template(4, "default", *models(canary=canary), "--skip-schema-validation")
    assert done.returncode != 0
    assert "models: minilm has a canary without share: its part of the requests, 0 for none" in done.stderr


@pytest.mark.parametrize("canary", [None, {}])
def test_an_empty_canary_is_none(canary: dict[str, object] | None) -> None:
    assert render("default", *models(canary=canary)) == render("default", *models())


def test_a_long_name_and_its_canary_are_names_of_kubernetes() -> None:
    name = "organisation/a-model-of-a-very-long-name-v2"
    for found in render("default", *models(name=name, canary=CANARY), "--set", f"fullnameOverride={'f' * 38}"):
        if found["kind"] in {"Service", "Deployment"}:
            assert len(found["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    ("config", "topics"),
    [
        ({"model": {"task": "generate"}}, []),
        ({"model": {"task": "both"}}, []),
        ({"generation": {"time_per_output_token_s": 0.05}}, []),
        ({}, [{"name": "a"}, {"name": "b", "task": "generate", "model": "chat"}]),
    ],
    ids=["its task", "both tasks", "a setting of generation", "a topic"],
)
def test_the_notes_say_what_is_on_trial_and_where_to_see_what_it_holds(
    config: dict[str, object], topics: list[dict[str, str]]
) -> None:
    generating = {"name": "chat", "source": {"hub": "house/chat"}, "config": config}
    tried = {"name": MODEL, "source": {"hub": "house/minilm"}, "canary": CANARY}
    given = ["--set", "kafka.bootstrapServers=k:1", "--set-json", f"models={json.dumps([tried, generating])}"]
    if topics:
        given += ["--set-json", f"kafka.config.topics={json.dumps(topics)}"]
    done = run(4, "install", "t", str(CHART), "--namespace", "ns", "--dry-run=client", *given)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "Models: minilm, chat." in notes
    assert "minilm: revision b is a canary and gets 25 % of the requests" in notes
    assert ("Embeddings/Embed and generation.v1.Generation/Generate" in notes) == (
        config == {"model": {"task": "both"}}
    )
    assert "logs deployment/t-tokenbatch-chat | grep max_sequences" in notes
    for name in (NAME, ON_TRIAL, "t-tokenbatch-chat"):
        assert f"rollout status deployment/{name}\n" in notes
