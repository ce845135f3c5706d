"""How a model's config.json is read where vLLM's own reading fails: by the entries of published ones."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver.engines.model_config import hf_overrides, known_type, refusal

VOYAGE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "auto_map": {"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"},
    "model_type": "qwen3",
}


def test_a_model_whose_code_vllm_has_a_class_for_is_served_by_that_class() -> None:
    assert hf_overrides(VOYAGE) == {"architectures": ["VoyageQwen3BidirectionalEmbedModel"]}
    assert hf_overrides({**VOYAGE, "auto_map": {}}) == {}


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"model_type": "jina_embeddings_v5"}, "qwen3"),
        ({"model_type": "jina_embeddings_v5", "is_decoder": False}, "eurobert"),
        ({"model_type": "bert", "is_decoder": False}, None),
    ],
)
def test_a_type_of_published_code_is_read_as_the_one_that_it_extends(config: dict[str, Any], known: str | None) -> None:
    assert known_type(config) == known


def test_a_model_that_chooses_adapters_by_code_is_refused_with_advice() -> None:
    reason = refusal({"model_type": "xlm-roberta", "lora_adaptations": ["retrieval.query"]})
    assert reason is not None
    assert "jinaai/jina-embeddings-v3-hf" in reason
    assert refusal({"model_type": "xlm-roberta"}) is None
