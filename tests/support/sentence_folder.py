"""Folders of models as sentence-transformers and transformers save them, without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelserver.model_files import ModelFiles, read
from tests.support.model_folder import write

NEW_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


def modules(folder: Path, *kinds: str, new: bool = False) -> None:
    types = NEW_TYPES if new else {}
    listed = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": types.get(kind, kind if "." in kind else f"sentence_transformers.models.{kind}"),
        }
        for place, kind in enumerate(kinds)
    ]
    write(folder, "modules.json", listed)


def pooled(folder: Path, *after: str, **config: Any) -> None:
    modules(folder, "Transformer", "Pooling", *(after or ("Normalize",)))
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 8, **config})


def causal(folder: Path, *, generation_config: bool = True) -> ModelFiles:
    write(folder, "config.json", {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 9, "hidden_size": 8})
    write(folder, "tokenizer.json", {})
    if generation_config:
        write(folder, "generation_config.json", {})
    return read(folder, "r")
