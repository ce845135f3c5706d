"""A small random model of each family that people embed with, in the shape of its published configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file

from tests.integration.modelserver import tiny_models
from tests.integration.modelserver.tiny_models import Pooling, TinyModel

SIZE, LONGEST, RANK = 128, 512, 4
ENCODER: Mapping[str, Any] = {
    "vocab_size": tiny_models.VOCABULARY,
    "hidden_size": SIZE,
    "intermediate_size": 2 * SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
}
DECODER: Mapping[str, Any] = {**ENCODER, "num_key_value_heads": 2}
SPECIAL: Mapping[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ROBERTA: Mapping[str, Any] = {**ENCODER, **SPECIAL, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}


@dataclass(frozen=True, slots=True)
class Family:
    """How a small model is made: transformers' class and configuration, and how it is saved.

    `saved_as`: the class with the head that the published files have. `dense`: sizes of linear layers after pooling.
    `published`: entries of the published config.json that transformers' own has otherwise. `head`: size of a linear
    layer before the pooling, in whose place it may stand after it. `bidirectional`: a decoder whose tokens all attend
    to each other. `adapter`: with an adapter for the task, and published code that pools and normalises.
    """

    architecture: str
    config: Mapping[str, Any]
    pooling: Pooling
    saved_as: str = ""
    dense: tuple[int, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict[str, Any])
    head: int = 0
    bidirectional: bool = False
    adapter: bool = False

    def save(self, folder: Path) -> Reference:
        """Write it as sentence-transformers does; what transformers makes of it."""
        kind = getattr(transformers, self.saved_as or self.architecture)
        whole = tiny_models.randomized(kind(getattr(transformers, self.architecture).config_class(**self.config)))
        body = whole.base_model if self.saved_as else whole
        model = TinyModel(whole, body, self.pooling, encoder_only=True, size=SIZE)
        tiny_models.save(model, folder)
        _rewrite(folder, self.published)
        if self.adapter:
            _adapt(body, folder)
        head = (_head(self.head, whole, folder),) if self.head else ()
        if self.bidirectional:
            model = replace(model, body=partial(_in_both_directions, body))
        return Reference(model, head + _dense(self.dense, folder))


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of transformers, and the linear layers [out, in] after its pooling."""

    model: TinyModel
    layers: tuple[npt.NDArray[np.float32], ...]

    def vectors(self, queries: list[list[int]]) -> npt.NDArray[np.float32]:
        """Float32 [queries, dimensions]."""
        vectors = self.model.pooled(queries)
        for layer in self.layers:
            vectors = vectors @ layer.T
        return vectors


def _in_both_directions(body: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
    length = attention_mask.shape[1]
    return body(input_ids=input_ids, attention_mask=torch.zeros(1, 1, length, length))


def _rewrite(folder: Path, entries: Mapping[str, Any]) -> None:
    """Change these entries of config.json; `...` removes one."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = {name: value for name, value in {**config, **entries}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")


def _adapt(body: Any, folder: Path) -> None:
    """Write a random LoRA adapter, as Jina v5 has one for each task, and add it to the weights of `body`."""
    path = folder / "adapters" / "retrieval"
    path.mkdir(parents=True)
    weights: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, layer in body.named_modules():
            if name.endswith("_proj"):
                low, high = torch.randn(RANK, layer.in_features) / 10, torch.randn(layer.out_features, RANK) / 10
                prefix = f"base_model.model.{name}"
                weights |= {f"{prefix}.lora_A.weight": low, f"{prefix}.lora_B.weight": high}
                layer.weight += 2.0 * high @ low
    save_file(weights, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}))
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    shutil.rmtree(folder / "1_Pooling")


def _head(size: int, whole: Any, folder: Path) -> npt.NDArray[np.float32]:
    """Save a linear layer beside the model, whose weights are then those of a part."""
    weight = torch.randn(size, SIZE) / SIZE**0.5
    weights = {f"model.{name}": each.contiguous() for name, each in whole.state_dict().items()}
    save_file({**weights, "linear.weight": weight}, folder / "model.safetensors", metadata={"format": "pt"})
    _rewrite(folder, {"num_labels": size})
    return np.asarray(weight, np.float32)


def _dense(sizes: tuple[int, ...], folder: Path) -> tuple[npt.NDArray[np.float32], ...]:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    layers: list[npt.NDArray[np.float32]] = []
    width = SIZE
    for place, size in enumerate(sizes, start=2):
        weight = torch.randn(size, width) / width**0.5
        path = folder / f"{place}_Dense"
        path.mkdir()
        save_file({"linear.weight": weight}, path / "model.safetensors")
        identity = "torch.nn.modules.linear.Identity"
        config = {"in_features": width, "out_features": size, "bias": False, "activation_function": identity}
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        module = {"idx": place, "name": str(place), "path": path.name, "type": "sentence_transformers.models.Dense"}
        modules.append(module)
        layers.append(np.asarray(weight, np.float32))
        width = size
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return tuple(layers)


_BERT = {**ENCODER, "type_vocab_size": 2}
_MODERNBERT = {
    **ENCODER,
    "num_hidden_layers": 4,
    "local_attention": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
_GEMMA = {
    **DECODER,
    "head_dim": SIZE // 4,
    "num_hidden_layers": 4,
    "sliding_window": 32,
    "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "query_pre_attn_scalar": SIZE // 4,
}
DISTILBERT = {
    "vocab_size": tiny_models.VOCABULARY,
    "dim": SIZE,
    "hidden_dim": 2 * SIZE,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": LONGEST,
}
_EUROBERT = {**DECODER, "num_key_value_heads": 4, "pad_token_id": 1}
QWEN3 = {**DECODER, "head_dim": SIZE // 4}
_NOMIC = {**_BERT, "hidden_size": 12 * 32, "num_attention_heads": 12, "head_dim": 32}
_NOMIC_PUBLISHED = {
    **dict.fromkeys(("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "head_dim"), ...),
    **dict.fromkeys(("hidden_act", "layer_norm_eps", "rope_parameters"), ...),
    "activation_function": "swiglu",
    "auto_map": {"AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig"},
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "rotary_emb_interleaved"), False),
    "n_embd": 12 * 32,
    "n_head": 12,
    "n_inner": 2 * SIZE,
    "n_layer": 2,
    "n_positions": 8192,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_scale_base": None,
}
_GTE = {**ENCODER, "type_vocab_size": 1, "pad_token_id": 1}
_ARCTIC = {
    "auto_map": {"AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig"},
    "position_embedding_type": "rope",
}
_JINA_V5 = {
    "architectures": ["JinaEmbeddingsV5Model"],
    "model_type": "jina_embeddings_v5",
    "task_names": ["retrieval", "text-matching", "clustering", "classification"],
    "auto_map": {
        "AutoConfig": "configuration_jina_embeddings_v5.JinaEmbeddingsV5Config",
        "AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model",
    },
}
_VOYAGE = {
    "architectures": ["Qwen3ForCausalLM"],
    "auto_map": {"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"},
    "use_bidirectional_attention": True,
}

SHAPES: Mapping[str, Family] = {
    "bert-mean": Family("BertModel", _BERT, "mean"),
    "bert-cls": Family("BertModel", _BERT, "cls"),
    "bert-masked": Family("BertModel", _BERT, "cls", saved_as="BertForMaskedLM"),
    "mpnet": Family("MPNetModel", {**ROBERTA, "type_vocab_size": 2}, "mean"),
    "distilbert": Family("DistilBertModel", DISTILBERT, "cls"),
    "roberta": Family("RobertaModel", ROBERTA, "mean"),
    "xlm-roberta-mean": Family("XLMRobertaModel", ROBERTA, "mean"),
    "xlm-roberta-cls": Family("XLMRobertaModel", ROBERTA, "cls"),
    "electra": Family("ElectraModel", {**_BERT, "embedding_size": SIZE}, "mean"),
    "gte": Family("GteModel", _GTE, "cls"),
    "arctic": Family("GteModel", _GTE, "cls", published=_ARCTIC),
    "modernbert": Family("ModernBertModel", _MODERNBERT, "cls"),
    "nomic": Family("NomicBertModel", {**_BERT, "head_dim": SIZE // 4}, "mean"),
    "nomic-published": Family("NomicBertModel", _NOMIC, "mean", published=_NOMIC_PUBLISHED),
    "jina-v3": Family("JinaEmbeddingsV3Model", {**ENCODER, **SPECIAL, "type_vocab_size": 1}, "mean"),
    "eurobert": Family("EuroBertModel", _EUROBERT, "mean"),
    "gemma": Family("Gemma3TextModel", _GEMMA, "mean", dense=(2 * SIZE, SIZE)),
    "qwen3": Family("Qwen3Model", QWEN3, "last", saved_as="Qwen3ForCausalLM"),
    "jina-v5-small": Family("Qwen3Model", QWEN3, "last", published=_JINA_V5, adapter=True),
    "jina-v5-nano": Family(
        "EuroBertModel", _EUROBERT, "last", published={**_JINA_V5, "is_decoder": False}, adapter=True
    ),
    "voyage": Family("Qwen3Model", QWEN3, "mean", published=_VOYAGE, head=2 * SIZE, bidirectional=True),
    "qwen2": Family("Qwen2Model", DECODER, "last", saved_as="Qwen2ForCausalLM"),
    "mistral": Family("MistralModel", {**DECODER, "sliding_window": None}, "last"),
    "llama": Family("LlamaModel", DECODER, "last"),
}
