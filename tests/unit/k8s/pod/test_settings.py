"""Settings: the environment over the file over defaults; what is no setting, or does not fit, is refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal
from unittest.mock import patch

import pytest
from pydantic import Field, PositiveInt, SecretStr

from k8s.pod.setting_names import unread
from k8s.pod.settings import Group, SettingsError, as_text, load

PREFIX = "APP_"


class Topic(Group):
    name: str = Field(description="the topic to read")
    priority: Literal["high", "low"] = "low"


class Client(Group):
    wait_s: float = 1.0
    password: SecretStr = SecretStr("")


class Kafka(Group):
    bootstrap_servers: str = Field(default="localhost:9092", description="where the brokers are")
    topics: tuple[Topic, ...] = Field(default=(Topic(name="requests"),), min_length=1)
    budget: PositiveInt | None = None
    client: Client = Field(default=Client(), description="wait_s, password")


class Settings(Group):
    kafka: Kafka = Kafka(bootstrap_servers="other:1")
    other_names: ClassVar[Mapping[str, str]] = {
        "brokers": "kafka.bootstrap_servers",
        "shards": "it is not needed here",
    }
    name: str = "app"
    depth: int = Field(default=3, ge=0)
    tags: tuple[str, ...] = ()
    rates: dict[str, float] = Field(default={})


def loaded(tmp_path: Path, *, file: str | None = None, **env: str) -> Settings:
    path = None
    if file is not None:
        path = tmp_path / "settings.yaml"
        path.write_text(file)
    with patch.dict(os.environ, env):
        return load(Settings, PREFIX, path)


def problems(tmp_path: Path, *, file: str | None = None, **env: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, file=file, **env)
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def test_the_file_wins_over_the_default_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = "name: from-file\nkafka:\n  bootstrap_servers: file:1\n  budget: 7\n"
    settings = loaded(tmp_path, file=file, APP_KAFKA__BOOTSTRAP_SERVERS="env:1")
    assert (settings.name, settings.kafka.bootstrap_servers, settings.kafka.budget) == ("from-file", "env:1", 7)
    assert settings.depth == 3


def test_a_part_of_a_group_leaves_the_process_s_default_of_the_rest(tmp_path: Path) -> None:
    assert loaded(tmp_path, APP_KAFKA__BUDGET="6").kafka == Kafka(bootstrap_servers="other:1", budget=6)
    assert loaded(tmp_path, file="kafka: {budget: 6}").kafka == Kafka(bootstrap_servers="other:1", budget=6)


def test_lists_and_groups_are_json_in_the_environment_with_parts_beside(tmp_path: Path) -> None:
    settings = loaded(tmp_path, APP_KAFKA__TOPICS='[{"name": "a"}, {"name": "b", "priority": "high"}]')
    assert settings.kafka.topics == (Topic(name="a"), Topic(name="b", priority="high"))
    settings = loaded(tmp_path, APP_KAFKA='{"budget": 5, "bootstrap_servers": "a:1"}', APP_KAFKA__BUDGET="6")
    assert (settings.kafka.budget, settings.kafka.bootstrap_servers) == (6, "a:1")
    assert loaded(tmp_path, APP_KAFKA__CLIENT__WAIT_S="2.5").kafka.client.wait_s == 2.5


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    settings = loaded(tmp_path, file="kafka: {budget: 7}", APP_KAFKA__BUDGET="", APP_DEPTH="")
    assert (settings.kafka.budget, settings.depth) == (7, 3)


def test_names_without_the_prefix_and_kubernetes_links_are_no_settings(tmp_path: Path) -> None:
    links = {
        "APP_SERVICE_HOST": "10.0.0.1",
        "APP_SERVICE_PORT": "80",
        "APP_SERVICE_PORT_GRPC": "80",
        "APP_PORT": "tcp://10.0.0.1:80",
        "APP_PORT_80_TCP": "tcp://10.0.0.1:80",
        "APP_PORT_80_TCP_ADDR": "10.0.0.1",
        "APP_METRICS_SERVICE_HOST": "10.0.0.2",
    }
    assert loaded(tmp_path, **links, KAFKA__BOOTSTRAP_SERVERS="a:1", APPLE="1") == Settings()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("APP_KAFKA__BOOTSTRAP_SERVER", ": did you mean APP_KAFKA__BOOTSTRAP_SERVERS?"),
        ("APP_KAFAK__BUDGET", ": did you mean APP_KAFKA__BUDGET?"),
        ("APP_KAFKA_BUDGET", ": did you mean APP_KAFKA__BUDGET?"),
        ("APP_KAFKA__CLIENT__WAITS", ": did you mean APP_KAFKA__CLIENT__WAIT_S?"),
        ("APP_KAFKA__TOPICS__0", ": did you mean APP_KAFKA__TOPICS?"),
        ("APP_ZZZ", "; --help lists all"),
        ("APP__ENV_FILE", "; --help lists all"),
        ("APP_0", "; --help lists all"),
        ("APP_0__1", "; --help lists all"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_the_nearest_name(name: str, told: str, tmp_path: Path) -> None:
    assert problems(tmp_path, **{name: "x"}) == [f"{name} is not a setting{told}"]


def test_a_key_of_a_file_or_json_that_is_no_setting_is_refused_anywhere(tmp_path: Path) -> None:
    file = "nahme: x\n_env_file: x\n'0': x\nkafka:\n  budgte: 1\n  topics:\n  - nme: a\n    name: a\n"
    assert sorted(problems(tmp_path, file=file)) == [
        "0 is not a setting; --help lists all",
        "_env_file is not a setting; --help lists all",
        "kafka.budgte is not a setting: did you mean kafka.budget?",
        "kafka.topics.0.nme is not a setting: did you mean kafka.topics.name?",
        "nahme is not a setting: did you mean name?",
    ]
    assert problems(tmp_path, APP_KAFKA__TOPICS='[{"name": "a", "prioriti": "low"}]') == [
        "kafka.topics.0.prioriti is not a setting: did you mean kafka.topics.priority?"
    ]


def test_every_value_that_does_not_fit_has_a_line_of_its_own(tmp_path: Path) -> None:
    assert sorted(problems(tmp_path, file="depth: deep", APP_KAFKA__BUDGET="-1")) == [
        "depth: give a whole number",
        "kafka.budget: give more than 0",
    ]


@pytest.mark.parametrize(
    "content",
    [
        *("- a\n", "a: [\n", "depth: 2023-99-99", "depth: 0b_", "depth: !!bool maybe", "depth: !!timestamp x"),
        *("[" * 600, "kafka: {password: [hunter2"),
    ],
)
def test_a_file_that_cannot_be_read_as_settings_is_refused(content: str, tmp_path: Path) -> None:
    (told,) = problems(tmp_path, file=content)
    assert told.startswith("settings.yaml: ")


@pytest.mark.parametrize("value", ["{", "[" * 100_000])
def test_what_is_no_json_is_refused(value: str, tmp_path: Path) -> None:
    (told,) = problems(tmp_path, APP_KAFKA__TOPICS=value)
    assert told.startswith("APP_KAFKA__TOPICS is not JSON (")
    assert told.endswith('): give a list of mappings, such as [{"name": "…"}]')


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("kafka: {topics: [a, b]}", ["kafka.topics.0: give a mapping, such as {name: …}"]),
        ("kafka: {topics: a}", ["kafka.topics: give a list of mappings, such as [{name: …}]"]),
        ("kafka: {topics: []}", ["kafka.topics: give at least one"]),
        ("kafka: {topics: [{priority: low}]}", ["kafka.topics.0.name: it must be given"]),
        ("kafka: {topics: [{name: a, priority: mid}]}", ["kafka.topics.0.priority: give one of 'high' or 'low'"]),
        ("kafka: [a]", ["kafka: give a mapping, such as {bootstrap_servers: …}"]),
        ("kafka: {client: {wait_s: soon}}", ["kafka.client.wait_s: give a number"]),
        ("depth: -1", ["depth: give 0 or more"]),
        ("name: [a]", ["name: give a text"]),
        ("tags: a", ["tags: give a list, such as [a, b]"]),
        ("rates: [a]", ["rates: give a mapping of names to values"]),
    ],
)
def test_a_value_of_the_wrong_kind_is_answered_by_an_example(tmp_path: Path, file: str, told: list[str]) -> None:
    assert problems(tmp_path, file=file)[:1] == told
    assert not [line for line in problems(tmp_path, file=file) if "should" in line or "at least one" in line][
        len(told) :
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("APP_KAFKA__BROKERS", ": did you mean APP_KAFKA__BOOTSTRAP_SERVERS?"),
        ("APP_BROKERS", ": did you mean APP_KAFKA__BOOTSTRAP_SERVERS?"),
        ("APP_CLIENT__BUDGET", ": did you mean APP_KAFKA__BUDGET?"),
        ("APP_KAFKA__RETRIES", ": kafka has bootstrap_servers, topics, budget, client"),
        ("APP_KAFKA__SHARDS", ": it is not needed here"),
    ],
)
def test_the_last_part_of_a_name_says_what_was_meant(name: str, told: str, tmp_path: Path) -> None:
    assert problems(tmp_path, **{name: "1"}) == [f"{name} is not a setting{told}"]


def test_variables_like_settings_that_nobody_reads_are_told() -> None:
    links = ["TOKENBATCH_WEB_SERVICE_HOST", "TOKENBATCH_WEB_PORT_80_TCP", "TOKENBATCH_PORT"]
    read = ["TOKENBATCH_AGGREGATOR_KAFKA__ENABLED", "TOKENBATCH_SCALER_X", "TOKENBATCH_MODELSERVER_X", "PATH"]
    (told,) = unread([*links, *read, "TOKENBATCH_KAFKA__ENABLED"])
    assert told.startswith(
        "no process reads TOKENBATCH_KAFKA__ENABLED: the names of settings begin with TOKENBATCH_AGG"
    )


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.yaml: no such file"):
        load(Settings, PREFIX, tmp_path / "missing.yaml")


def test_secrets_are_masked_in_what_check_prints(tmp_path: Path) -> None:
    text = as_text(loaded(tmp_path, APP_KAFKA__CLIENT__PASSWORD="hunter2"))
    assert "hunter2" not in text
    assert "password: '**********'" in text


@pytest.mark.parametrize(
    "given",
    [
        {"APP_KAFKA__CLIENT__PASSWORT": "hunter2"},
        {"APP_KAFKA__CLIENT": '{"password": ["hunter2"]}'},
        {"APP_KAFKA__CLIENT": '{"password": "hunter2"'},
        {"file": "kafka: {client: {passwort: hunter2}}"},
        {"file": "kafka: [password: hunter2"},
        {"file": "kafka: {client: {password: [hunter2]}}"},
        {"file": "kafka: hunter2"},
    ],
)
def test_a_complaint_quotes_no_value(given: dict[str, str], tmp_path: Path) -> None:
    assert "hunter2" not in "".join(problems(tmp_path, **given))
