"""The group of Redis is checked like the rest of the settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import ENV_PREFIX
from k8s.pod.settings import SettingsError, load


def test_a_stream_names_a_configured_model() -> None:
    streams = [{"name": "t"}, {"name": "u", "model": "nobody"}]
    with pytest.raises(ValidationError, match="u: its model nobody is not configured: use one of all-minilm-l6-v2, m"):
        AllSettings.model_validate({"redis": {"enabled": True, "streams": streams}})


def test_its_streams_may_name_any_model_while_it_is_off() -> None:
    (stream,) = AllSettings.model_validate({"redis": {"streams": [{"name": "u", "model": "nobody"}]}}).redis.streams
    assert stream.model == "nobody"


@pytest.mark.parametrize("broken", ["localhost:", "localhost:99999"])
def test_its_servers_are_checked(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}REDIS__SERVERS", broken)
    with pytest.raises(SettingsError, match="is not host:port"):
        load(AllSettings, ENV_PREFIX)


def test_brokers_in_it_are_taken_for_those_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}REDIS__BROKERS", "broker:9092")
    with pytest.raises(SettingsError, match=r"is not a setting: did you mean .*KAFKA__BOOTSTRAP_SERVERS"):
        load(AllSettings, ENV_PREFIX)
