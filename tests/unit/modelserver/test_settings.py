"""Settings of the model server; `k8s.pod.settings` reads them as the aggregator's."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from k8s.pod.help import help_text
from k8s.pod.settings import SettingsError, load
from modelserver.all_settings import AllModelServerSettings
from modelserver.settings import ENV_PREFIX


def test_options_of_vllm_are_a_mapping_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}ENGINE__VLLM_OPTIONS", '{"enforce_eager": true}')
    settings = load(AllModelServerSettings, ENV_PREFIX)
    assert settings.engine.vllm_options == {"enforce_eager": True}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("MODEL__DTYPE", f"did you mean {ENV_PREFIX}ENGINE__DTYPE?"),
        ("ENGINE__MAX_MODEL_LEN", f"did you mean {ENV_PREFIX}MODEL__MAX_INPUT_TOKENS?"),
        ("MAX_BATCH_TOKENS", f"did you mean {ENV_PREFIX}ENGINE__STEP_TOKENS?"),
        (
            "ENGINE__TENSOR_PARALLEL_SIZE",
            'it is vLLM\'s: give it in engine.vllm_options, as {"tensor_parallel_size": …}',
        ),
        ("ENGINE__KNID", f"did you mean {ENV_PREFIX}ENGINE__KIND?"),
        ("ENGINE__COLOUR", "engine has kind, dtype, step_tokens, gpu_share, peak_tflops, graphs, vllm_options"),
    ],
)
def test_a_name_of_vllm_or_tei_leads_to_its_setting_here(name: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_PREFIX + name, "2")
    with pytest.raises(SettingsError) as caught:
        load(AllModelServerSettings, ENV_PREFIX)
    assert str(caught.value) == f"{ENV_PREFIX}{name} is not a setting: {told}"


def test_help_says_every_setting_its_choices_and_its_default() -> None:
    text = help_text(AllModelServerSettings, ENV_PREFIX)
    assert f"{ENV_PREFIX}ENGINE__DTYPE  <auto|float32|bfloat16|float16>  [default auto]" in text
    assert f"{ENV_PREFIX}MODEL__PATH  <text>  [default empty]" in text
    assert f'{ENV_PREFIX}SYNTHETIC  <mapping>  [default {{"fixed_s": 0.002,' in text
    settings = Counter(re.findall(rf"{ENV_PREFIX}([A-Z]+)", text))
    assert settings.items() >= {"MODEL": 6, "ENGINE": 7, "GRPC": 1, "SYNTHETIC": 1, "TELEMETRY": 2}.items()
