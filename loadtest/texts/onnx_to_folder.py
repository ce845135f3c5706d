"""Turn a BERT encoder in ONNX into a model folder: `python -m loadtest.texts.onnx_to_folder FILE FACTS FOLDER`.

FACTS is JSON: the model card's `pooling` (cls or mean), `prompts` and `licence`. The initialisers of the graph are the
weights; those of matrices have no name of their own, and are found by the node that multiplies with them. A program of
its own, which nothing imports: it needs the packages onnx and safetensors.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

_MATRIX = re.compile(r"/(encoder/layer\.\d+/.*)/MatMul")
_LIMIT_TOKENS = 512
_SPECIAL = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")}

Weights = dict[str, npt.NDArray[Any]]


def weights_of(model: onnx.ModelProto) -> Weights:
    """The tensors under the names of transformers' BertModel; each matrix [out, in]. Raises ValueError."""
    given = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    found = {name: value for name, value in given.items() if name.startswith(("embeddings.", "encoder."))}
    found.pop("embeddings.position_ids", None)  # 0, 1, 2, …
    unnamed = given.keys() - found.keys() - {"embeddings.position_ids"}
    for node in model.graph.node:
        matrix = _MATRIX.fullmatch(node.name) if node.op_type == "MatMul" else None
        if matrix and node.input[1] in unnamed:
            unnamed.remove(node.input[1])
            found[f"{matrix[1].replace('/', '.')}.weight"] = given[node.input[1]].T
    if unnamed:
        raise ValueError(f"initialisers without a place: {', '.join(sorted(unnamed))}")
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def config_of(weights: Weights) -> dict[str, Any]:
    """The configuration that the shapes show; heads of 32 and the activation are those of the published family."""
    words, hidden = weights["embeddings.word_embeddings.weight"].shape
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "intermediate_size": weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": weights["embeddings.position_embeddings.weight"].shape[0],
        "num_attention_heads": hidden // 32,
        "num_hidden_layers": 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.")),
        "pad_token_id": 0,
        "type_vocab_size": weights["embeddings.token_type_embeddings.weight"].shape[0],
        "vocab_size": words,
    }


def convert(file: Path, tokenizer: Path, facts: dict[str, Any], folder: Path) -> None:
    """Write it as sentence-transformers has models, and check that each tensor is the initialiser, bit for bit."""
    weights = weights_of(onnx.load(str(file)))
    (folder / "1_Pooling").mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    written = load_file(folder / "model.safetensors")
    assert written.keys() == weights.keys()
    assert all(np.array_equal(written[name], weights[name]) for name in weights)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    config = config_of(weights)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": config["hidden_size"],
        "pooling_mode_cls_token": facts["pooling"] == "cls",
        "pooling_mode_mean_tokens": facts["pooling"] == "mean",
    }
    tokens = {"do_lower_case": True, "model_max_length": _LIMIT_TOKENS, "tokenizer_class": "BertTokenizer", **_SPECIAL}
    for name, content in {
        "config.json": config,
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": _LIMIT_TOKENS, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": facts["prompts"], "default_prompt_name": None},
        "tokenizer_config.json": tokens,
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(f"{folder.name}, {facts['licence']}, from {file.name}\n", encoding="utf-8")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    convert(source, source.with_name(f"{source.stem}-tokenizer.json"), json.loads(sys.argv[2]), Path(sys.argv[3]))
