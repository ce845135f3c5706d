"""The models that transformers computes are told by their config.json."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from modelserver.wings.padded.classes import PADDED, served_as


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"architectures": ["MPNetModel"]}, "PaddedEncoder"),
        ({"architectures": ["DistilBertForMaskedLM"]}, "PaddedEncoder"),
        ({"architectures": ["DebertaV2ForSequenceClassification"]}, "PaddedForSequenceClassification"),
        ({"architectures": ["BertForMaskedLM"]}, "HeadlessBert"),
        ({"architectures": ["GteModel"]}, "PaddedEncoder"),
        ({"architectures": ["NomicBertModel"], "activation_function": "swiglu"}, None),
        ({"architectures": ["MPNetModel"], "auto_map": {"AutoModel": "theirs.Model"}}, None),
        ({"architectures": ["BertModel"]}, None),
        ({}, None),
    ],
)
def test_what_transformers_computes_is_told_by_its_files(config: dict[str, Any], told: str | None) -> None:
    assert served_as(config) == told


def test_each_class_has_a_place_that_vllm_can_import() -> None:
    assert PADDED.eager <= PADDED.places.keys()
    for architecture, place in PADDED.places.items():
        module, _, name = place.partition(":")
        assert name == architecture
        assert importlib.util.find_spec(module) is not None
