"""The models that are measured: MiniLM from its wheel, and random ones in the shapes that people use."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from loadtest.stack.instant_modelserver import tokenizer_folder

MINILM = "minilm"
_VOCABULARY = 30_522
"""Of MiniLM's tokenizer, which every model here has."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A class of transformers, its configuration, and the token that is pooled: mean for encoders, else the last."""

    kind: str
    config: Mapping[str, Any]
    pooling: str


def _bert(layers: int, hidden: int, heads: int, kind: str = "BertModel", positions: int = 512) -> Shape:
    config = {
        "max_position_embeddings": positions,
        "vocab_size": _VOCABULARY,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
    }
    return Shape(kind, config, "pooling_mode_mean_tokens")


def _qwen3(layers: int, hidden: int, heads: int) -> Shape:
    config = {
        "vocab_size": _VOCABULARY,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    return Shape("Qwen3ForCausalLM", config, "pooling_mode_lasttoken")


SHAPES = {
    "base": _bert(12, 768, 12),
    "large": _bert(24, 1024, 16),
    "decoder-0.6b": _qwen3(28, 1024, 16),
    "mpnet": _bert(6, 384, 12, "MPNetModel", 514),  # whose positions begin at 2
    "tiny": _bert(2, 64, 2),
}
"""As BERT base and large, Qwen3-Embedding-0.6B with a smaller vocabulary, and MiniLM where transformers computes it.

The last is for dry runs.
"""


def model_folder(name: str, folder: Path) -> Path:
    """Where the model is, or is to be made."""
    return tokenizer_folder() if name == MINILM else folder / name


def make_missing(folder: Path) -> None:
    """Make the model of a folder that was not made yet; torch and transformers are loaded only then."""
    shape = SHAPES.get(folder.name)
    if shape is not None and not (folder / "modules.json").is_file():
        _make(folder, shape)


def operations_per_token(folder: Path) -> float:
    """Two for each weight of a matrix that a token is multiplied with; attention is left out."""
    weights = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
        weights += sum(math.prod(shape) for name, shape in shapes.items() if len(shape) > 1 and "embed" not in name)
    return 2.0 * weights


def _make(folder: Path, shape: Shape) -> None:
    """Write random weights in half precision, as sentence-transformers has models."""
    import torch  # noqa: PLC0415 - only engine_steps makes models
    import transformers  # noqa: PLC0415

    torch.manual_seed(0)
    kind = getattr(transformers, shape.kind)
    model = kind(kind.config_class(**shape.config)).half()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder() / name, folder / name)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": shape.config["hidden_size"], shape.pooling: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
