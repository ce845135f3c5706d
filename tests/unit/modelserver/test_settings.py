"""Settings of the model server; `k8s.pod.settings` reads them as the aggregator's."""

from __future__ import annotations

import pytest

from k8s.pod.help import help_text
from k8s.pod.settings import load
from modelserver.settings import ENV_PREFIX, ModelServerSettings


def test_options_of_vllm_are_a_mapping_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}ENGINE__VLLM_OPTIONS", '{"enforce_eager": true}')
    settings = load(ModelServerSettings, ENV_PREFIX)
    assert settings.engine.vllm_options == {"enforce_eager": True}


def test_help_says_every_setting_its_choices_and_its_default() -> None:
    text = help_text(ModelServerSettings, ENV_PREFIX)
    assert f"{ENV_PREFIX}ENGINE__DTYPE  <auto|float32|bfloat16|float16>  [default auto]" in text
    assert f"{ENV_PREFIX}MODEL__PATH  <text>  [default empty]" in text
    assert f'{ENV_PREFIX}PROFILE  <mapping>  [default {{"enabled": true,' in text
    assert text.count(ENV_PREFIX) == 17
