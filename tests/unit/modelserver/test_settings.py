"""Settings: the command line over the environment over the file over defaults; unknown names are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelserver.errors import CannotStart
from modelserver.settings import ENV_PREFIX, ModelServerSettings, help_text, load


def test_the_command_line_goes_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "modelserver.yaml"
    file.write_text("model: {path: /file, name: file, revision: file}\ngrpc: {bind: file}\n")
    monkeypatch.setenv(f"{ENV_PREFIX}MODEL__PATH", "/env")
    monkeypatch.setenv(f"{ENV_PREFIX}MODEL__NAME", "")
    monkeypatch.setenv(f"{ENV_PREFIX}GRPC__BIND", "env")
    monkeypatch.setenv(f"{ENV_PREFIX}ENGINE__VLLM_OPTIONS", '{"enforce_eager": true}')
    settings = load(file, bind="here:1")
    assert (settings.model.path, settings.model.name, settings.model.revision) == ("/env", "file", "file")
    assert settings.grpc.bind == "here:1"
    assert settings.engine.vllm_options == {"enforce_eager": True}
    assert settings.grpc.drain_timeout_s == ModelServerSettings().grpc.drain_timeout_s


def test_settings_made_in_code_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}MODEL__PATH", "/env")
    assert ModelServerSettings().model.path == ""


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MODEL__PAHT", "x", f"{ENV_PREFIX}MODEL__PAHT is not a setting: did you mean {ENV_PREFIX}MODEL__PATH?"),
        ("ENGINE_KIND", "core", f"did you mean {ENV_PREFIX}ENGINE__KIND?"),
        ("ENGINE__KIND", "fast", "engine.kind: Input should be 'auto'"),
        ("ENGINE__STEP_TOKENS", "0", "engine.step_tokens: Input should be greater than 0"),
        ("ENGINE__VLLM_OPTIONS", "{", "the environment: error parsing value"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_PREFIX + name, value)
    with pytest.raises(CannotStart) as refused:
        load()
    assert told in str(refused.value)


def test_what_kubernetes_says_of_a_service_of_this_name_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT_GRPC", "PORT", "PORT_50061_TCP_ADDR"):
        monkeypatch.setenv(ENV_PREFIX + name, "10.0.0.1")
    assert load() == ModelServerSettings()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("engine: {knid: core}", "engine.knid is not a setting: did you mean engine.kind?"),
        ("engine: {step_tokens: -1}", "engine.step_tokens: Input should be greater than 0"),
        ("_env_file: /etc/passwd", "_env_file is not a setting"),
        ("engine: [", "modelserver.yaml: "),
        ("- engine", "modelserver.yaml: "),
        ("a: 2020-13-01", "modelserver.yaml: "),
        (None, "modelserver.yaml: there is no such file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(content: str | None, told: str, tmp_path: Path) -> None:
    file = tmp_path / "modelserver.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CannotStart) as refused:
        load(file)
    assert told in str(refused.value)


def test_help_says_every_setting_its_choices_and_its_default() -> None:
    text = help_text()
    assert f"{ENV_PREFIX}ENGINE__DTYPE  <auto|float32|bfloat16|float16>  [default auto]" in text
    assert f"{ENV_PREFIX}MODEL__PATH  [default empty]" in text
    assert f'{ENV_PREFIX}PROFILE  [default {{"enabled":true,' in text
    assert text.count(ENV_PREFIX) == 17
