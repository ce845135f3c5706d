"""The models that are measured: MiniLM from its wheel, and random ones in the shapes that people use.

`python -m loadtest.bench.gpu.models FOLDER NAME` makes one. A program of its own: it loads torch, and ends.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from loadtest.bench.programs.instant_modelserver import tokenizer_folder
from loadtest.stack.program import output_of

MINILM = "minilm"
_VOCABULARY = 30_522
"""Of MiniLM's tokenizer, which every model here has."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A class of transformers, its configuration, and the token that is pooled: mean for encoders, else the last."""

    kind: str
    config: Mapping[str, Any]
    pooling: str


def _bert(layers: int, hidden: int, heads: int) -> Shape:
    config = {
        "vocab_size": _VOCABULARY,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
    }
    return Shape("BertModel", config, "pooling_mode_mean_tokens")


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
    "tiny": _bert(2, 64, 2),
}
"""As BERT base and large, and as Qwen3-Embedding-0.6B with a smaller vocabulary; the last for dry runs."""


def model_folder(name: str, folder: Path) -> Path:
    """The folder of a model, which is made if it is not there. Raises StackError."""
    if name == MINILM:
        return tokenizer_folder()
    made = folder / name
    if not (made / "modules.json").is_file():
        output_of("loadtest.bench.gpu.models", str(made), name)
    return made


def operations_per_token(folder: Path) -> float:
    """Two for each weight of a matrix that a token is multiplied with; attention is left out."""
    weights = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
        weights += sum(math.prod(shape) for name, shape in shapes.items() if len(shape) > 1 and "embed" not in name)
    return 2.0 * weights


def make(folder: Path, shape: Shape) -> None:
    """Write random weights in half precision, as sentence-transformers has models."""
    import torch  # noqa: PLC0415 - only the program needs it
    import transformers  # noqa: PLC0415

    torch.manual_seed(0)
    kind = getattr(transformers, shape.kind)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
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


if __name__ == "__main__":
    make(Path(sys.argv[1]), SHAPES[sys.argv[2]])
