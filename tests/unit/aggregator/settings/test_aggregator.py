"""What the aggregator's own settings refuse, with one line that says what to write instead."""

from __future__ import annotations

import os
import re
from unittest.mock import patch

import pytest

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import ENV_PREFIX
from aggregator.wings.scaler.settings import ScalerSettings
from k8s.pod.setting_names import all_paths
from k8s.pod.settings import Group, SettingsError, load
from modelserver.all_settings import AllModelServerSettings

AGGREGATORS = f"{ENV_PREFIX}TENANTS__AGGREGATORS"
MODELS = f"{ENV_PREFIX}MODELS"


def complaint(**env: str) -> str:
    with patch.dict(os.environ, env), pytest.raises(SettingsError) as caught:
        load(AllSettings, ENV_PREFIX)
    return str(caught.value)


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "many", "http://a:1", "k8s:/a.b:1"])
def test_aggregators_are_a_number_or_an_address(wrong: str) -> None:
    wanted = "give a number of 1 or more, k8s://SERVICE.NAMESPACE:PORT or dns://NAME:PORT"
    assert complaint(**{AGGREGATORS: wrong}) == f"tenants.aggregators: {wanted}"


@pytest.mark.parametrize(
    ("wrong", "form"),
    [
        ("k8s://service:50061", "k8s://SERVICE.NAMESPACE:PORT"),
        ("k8s://service.namespace", "k8s://SERVICE.NAMESPACE:PORT"),
        ("k8s://service.namespace.svc:50061", "k8s://SERVICE.NAMESPACE:PORT"),
        ("dns://name", "dns://NAME:PORT"),
        ("dns://name:port", "dns://NAME:PORT"),
    ],
)
def test_an_address_of_changing_endpoints_has_its_form(wrong: str, form: str) -> None:
    assert f"{wrong!r} is not {form}" in complaint(**{AGGREGATORS: wrong})
    servers = complaint(**{MODELS: f'[{{"name": "m", "servers": ["host:1", "{wrong}"]}}]'})
    assert servers.startswith("models.0.servers: ")
    assert f"{wrong!r} is not {form}" in servers


@pytest.mark.parametrize("wrong", ["", "host", ":1", "host:", "host:port", "http://host"])
def test_the_address_of_a_model_server_has_a_port(wrong: str) -> None:
    servers = complaint(**{MODELS: f'[{{"name": "m", "servers": ["{wrong}"]}}]'})
    assert servers.startswith(f"models.0.servers: {wrong!r} is not host:port")


@pytest.mark.parametrize("wrong", [0, 0.0005, -1, 1800.5, 1e9, "Infinity"])
def test_a_session_lasts_as_long_as_a_broker_may_take(wrong: float | str) -> None:
    said = complaint(**{f"{ENV_PREFIX}KAFKA__CLIENT": f'{{"session_timeout_s": {wrong}}}'})
    assert said.startswith("kafka.client.session_timeout_s: ")


@pytest.mark.parametrize("right", [1, 6, 45.5, 1800])
def test_a_session_timeout_in_a_brokers_range_is_taken(right: float) -> None:
    with patch.dict(os.environ, {f"{ENV_PREFIX}KAFKA__CLIENT": f'{{"session_timeout_s": {right}}}'}):
        assert load(AllSettings, ENV_PREFIX).kafka.client.session_timeout_s == right


@pytest.mark.parametrize("right", ["3", "k8s://service.namespace:50051", "dns://some.name:50051"])
def test_what_can_be_counted_is_taken(right: str) -> None:
    with patch.dict(os.environ, {AGGREGATORS: right}):
        assert load(AllSettings, ENV_PREFIX).tenants.aggregators == right


TWO_MODELS = '[{"name": "m", "servers": ["h:1"], "aliases": ["m", "a"]}, {"name": "%s", "servers": ["h:2"]}]'


@pytest.mark.parametrize("name", ["m", "a"])
def test_two_models_have_different_names_and_aliases(name: str) -> None:
    assert complaint(**{MODELS: TWO_MODELS % name}) == f"models: {name}: several models have this name or alias"


def test_a_topic_names_a_configured_model() -> None:
    given = {MODELS: TWO_MODELS % "n"}
    wrong = {f"{ENV_PREFIX}KAFKA__TOPICS": '[{"name": "t", "model": "a"}, {"name": "u", "model": "nobody"}]'}
    assert complaint(**given, **wrong) == ("u: its model nobody is not configured: use one of m, a, n")


def test_a_topic_is_read_once_and_takes_no_replies() -> None:
    topics = f"{ENV_PREFIX}KAFKA__TOPICS"
    assert "t: configured twice: list each topic once" in complaint(**{topics: '[{"name": "t"}, {"name": "t"}]'})
    replies = '[{"name": "t"}, {"name": "u", "reply_topic": "t"}]'
    assert "t: replies need a topic that is not read" in complaint(**{topics: replies})


@pytest.mark.parametrize("name", ["KAFKA__BROKERS", "BROKERS", "KAFKA__BOOTSTRAP"])
def test_kafkas_brokers_are_found_by_their_usual_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_PREFIX + name, "broker:9092")
    with pytest.raises(SettingsError, match=f"{name} is not a setting: did you mean {ENV_PREFIX}KAFKA__BOOTSTRAP_SERV"):
        load(AllSettings, ENV_PREFIX)


@pytest.mark.parametrize("settings", [AllSettings, ScalerSettings, AllModelServerSettings])
def test_a_name_of_others_leads_to_a_setting_that_is_there(settings: type[Group]) -> None:
    names = {target for target in settings.other_names.values() if re.fullmatch(r"[\w.]+", target)}
    assert names
    assert names <= {".".join(path) for path in all_paths(settings)}
