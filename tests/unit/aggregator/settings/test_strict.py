from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, SecretStr

from aggregator.settings.aggregator import ENV_PREFIX, AggregatorSettings
from aggregator.settings.strict import SettingsError, StrictSettings, as_text, help_text, load, read_secret

PREFIX = "APP_"


class Topic(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="the topic to read")
    priority: Literal["high", "low"] = "low"


class Kafka(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_servers: str = Field(default="localhost:9092", description="where the brokers are")
    topics: tuple[Topic, ...] = (Topic(name="requests"),)
    password: SecretStr = SecretStr("")
    budget: PositiveInt | None = None


class Settings(StrictSettings):
    kafka: Kafka = Kafka()
    name: str = "app"
    depth: int = Field(default=3, ge=0)


def loaded(tmp_path: Path, *, file: str | None = None, **env: str) -> Settings:
    path = None
    if file is not None:
        path = tmp_path / "settings.yaml"
        path.write_text(file)
    return load(Settings, prefix=PREFIX, env=env, file=path)


def problems(tmp_path: Path, *, file: str | None = None, **env: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, file=file, **env)
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Settings()


def test_the_file_wins_over_the_default_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = "name: from-file\nkafka:\n  bootstrap_servers: file:1\n  budget: 7\n"
    settings = loaded(tmp_path, file=file, APP_KAFKA__BOOTSTRAP_SERVERS="env:1")
    assert settings.name == "from-file"
    assert settings.kafka.bootstrap_servers == "env:1"
    assert settings.kafka.budget == 7
    assert settings.depth == 3


def test_lists_are_json_in_the_environment(tmp_path: Path) -> None:
    settings = loaded(tmp_path, APP_KAFKA__TOPICS='[{"name": "a"}, {"name": "b", "priority": "high"}]')
    assert settings.kafka.topics == (Topic(name="a"), Topic(name="b", priority="high"))


def test_a_group_may_be_given_as_json_and_a_part_of_it_beside(tmp_path: Path) -> None:
    settings = loaded(tmp_path, APP_KAFKA='{"budget": 5, "bootstrap_servers": "a:1"}', APP_KAFKA__BUDGET="6")
    assert (settings.kafka.budget, settings.kafka.bootstrap_servers) == (6, "a:1")


def test_an_empty_value_unsets_what_may_be_empty(tmp_path: Path) -> None:
    settings = loaded(tmp_path, file="kafka: {budget: 7}", APP_KAFKA__BUDGET="", APP_NAME="")
    assert settings.kafka.budget is None
    assert settings.name == ""


def test_names_without_the_prefix_are_not_ours(tmp_path: Path) -> None:
    assert loaded(tmp_path, KAFKA__BOOTSTRAP_SERVERS="a:1", APPLE="1") == Settings()


def test_what_kubernetes_says_of_a_service_of_the_same_name_is_no_setting(tmp_path: Path) -> None:
    links = {
        "APP_SERVICE_HOST": "10.0.0.1",
        "APP_SERVICE_PORT": "80",
        "APP_SERVICE_PORT_GRPC": "80",
        "APP_PORT": "tcp://10.0.0.1:80",
        "APP_PORT_80_TCP": "tcp://10.0.0.1:80",
        "APP_PORT_80_TCP_ADDR": "10.0.0.1",
        "APP_METRICS_SERVICE_HOST": "10.0.0.2",
    }
    assert loaded(tmp_path, **links) == Settings()


def test_a_typo_in_an_environment_name_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_KAFKA__BOOTSTRAP_SERVER="a:1") == [
        "APP_KAFKA__BOOTSTRAP_SERVER is not a setting: did you mean APP_KAFKA__BOOTSTRAP_SERVERS?"
    ]


def test_a_typo_in_a_group_names_the_setting_that_was_meant(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_KAFAK__BUDGET="1", APP_DEPHT="1") == [
        "APP_DEPHT is not a setting: did you mean APP_DEPTH?",
        "APP_KAFAK__BUDGET is not a setting: did you mean APP_KAFKA__BUDGET?",
    ]


def test_a_single_underscore_between_group_and_name_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_KAFKA_BUDGET="1") == [
        "APP_KAFKA_BUDGET is not a setting: did you mean APP_KAFKA__BUDGET?"
    ]


def test_a_typo_in_a_file_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    file = "nahme: x\nkafka:\n  budgte: 1\n  topics:\n  - nme: a\n    name: a\n"
    assert sorted(problems(tmp_path, file=file)) == [
        "settings.yaml: kafka.budgte is not a setting: did you mean budget?",
        "settings.yaml: kafka.topics.0.nme is not a setting: did you mean name?",
        "settings.yaml: nahme is not a setting: did you mean name?",
    ]


def test_a_typo_inside_json_names_variable_and_place(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_KAFKA__TOPICS='[{"name": "a", "prioriti": "low"}]') == [
        "APP_KAFKA__TOPICS: kafka.topics.0.prioriti is not a setting: did you mean priority?"
    ]


def test_a_name_unlike_any_other_is_refused_without_a_guess(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_ZZZ="1") == ["APP_ZZZ is not a setting; --help lists all 6 there are"]


def test_every_problem_has_a_line_of_its_own(tmp_path: Path) -> None:
    found = problems(tmp_path, file="depth: deep", APP_KAFKA__BUDGET="-1", APP_KAFKA__TOPICS="{", APP_NAM="x")
    assert found == [
        "APP_KAFKA__TOPICS: not valid JSON",
        "APP_KAFKA__BUDGET: Input should be greater than 0, not -1",
        "settings.yaml: depth: Input should be a valid integer, unable to parse string as an integer, not 'deep'",
        "APP_NAM is not a setting: did you mean APP_NAME?",
    ]


@pytest.mark.parametrize("content", ["- a\n", "a: [\n", "1: 2\n"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, content: str) -> None:
    assert problems(tmp_path, file=content)[0].startswith("settings.yaml: ")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("depth: 2023-99-99", "ValueError"),
        ("depth: 0b_", "ValueError"),
        ("depth: !!bool maybe", "KeyError"),
        ("depth: !!timestamp x", "AttributeError"),
        ("[" * 600, "RecursionError"),
    ],
)
def test_what_the_yaml_library_stumbles_over_is_refused(tmp_path: Path, content: str, error: str) -> None:
    assert problems(tmp_path, file=content) == [f"settings.yaml: it holds a value that YAML does not take: {error}"]


def test_json_nested_too_deep_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, APP_KAFKA="[" * 100_000) == ["APP_KAFKA: not valid JSON: nested too deep"]


@pytest.mark.parametrize("name", ["_env_file", "_cli_parse_args"])
def test_the_options_of_the_settings_library_are_no_settings(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, file=f"{name}: x") == [f"settings.yaml: {name} is not a setting"]
    assert problems(tmp_path, **{f"APP_{name.upper()}": "x"}) == [f"APP_{name.upper()}: {name} is not a setting"]


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(Settings, prefix=PREFIX, env={}, file=tmp_path / "missing.yaml")


def test_an_empty_file_is_no_mistake(tmp_path: Path) -> None:
    assert loaded(tmp_path, file="# nothing yet\n") == Settings()


def test_the_environment_of_the_machine_is_not_read_by_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "from the machine")
    assert Settings().name == "app"


def test_secrets_are_masked_in_what_check_prints(tmp_path: Path) -> None:
    text = as_text(loaded(tmp_path, APP_KAFKA__PASSWORD="hunter2"))
    assert "hunter2" not in text
    assert "password: '**********'" in text
    assert "bootstrap_servers: localhost:9092" in text


def test_a_secret_under_a_mistyped_name_does_not_show(tmp_path: Path) -> None:
    assert "hunter2" not in "".join(problems(tmp_path, APP_KAFKA__PASSWORT="hunter2"))
    assert "hunter2" not in "".join(problems(tmp_path, file="kafka: {passwort: hunter2}"))
    assert "hunter2" not in "".join(problems(tmp_path, file="kafka: [password: hunter2"))
    assert "hunter2" not in "".join(problems(tmp_path, file="kafka: {password: [hunter2]}"))


def test_a_secret_comes_from_its_file_without_the_last_line_break(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    assert read_secret(SecretStr("other"), file) == "hunter2"
    assert read_secret(SecretStr("other"), None) == "other"


def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere cannot be read: No such file"):
        read_secret(SecretStr(""), tmp_path / "nowhere")


def test_help_says_name_type_default_and_meaning_of_everything() -> None:
    text = help_text(Settings, PREFIX)
    assert "APP_KAFKA__BOOTSTRAP_SERVERS  <text>  [default localhost:9092]\n    where the brokers are\n" in text
    assert "APP_KAFKA__BUDGET  <integer or empty>  [default empty]" in text
    assert "APP_KAFKA__PASSWORD  <secret>  [default none]" in text
    assert "- name  <text>  [required]  the topic to read" in text
    assert "- priority  <high|low>  [default low]" in text
    assert "APP_DEPTH  <integer ≥ 0>  [default 3]" in text


def test_the_aggregators_settings_load_and_explain_themselves() -> None:
    settings = load(AggregatorSettings, prefix=ENV_PREFIX, env={f"{ENV_PREFIX}TELEMETRY__LOG_LEVEL": "debug"})
    assert settings.telemetry.log_level == "debug"
    assert f"{ENV_PREFIX}KAFKA__BOOTSTRAP_SERVERS" in help_text(AggregatorSettings, ENV_PREFIX)
