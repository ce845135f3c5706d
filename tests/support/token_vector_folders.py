"""Small models that give a vector a token, saved in every layout, and what their own libraries make of texts.

Run as a program, since vLLM changes classes of transformers: `python -m tests.support.token_vector_folders FOLDER`.
"""

from __future__ import annotations

import json
import shutil
import string
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import AddedToken
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from modelserver import model_files
from modelserver.model_files import TOKENIZER_FILE
from tests.integration.modelserver import tiny_models
from tests.integration.modelserver.model_families import ENCODER, SIZE
from tests.support.token_vector_texts import TEXTS

SIDES = ("query", "document")
WORDS = 30524  # MiniLM's, and two prefixes
PROMPTS = {"query": "[Q] ", "document": "[D] "}
PUNCTUATION = list(string.punctuation)


def of_tokens(kind: type, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, module_input_name="token_embeddings", **options)


def dense(size: int) -> Any:
    return of_tokens(Dense, SIZE, size, bias=False, activation_function=torch.nn.Identity())


Saved = tuple[Mapping[str, Any], Callable[[], list[Any]]]
NATIVE: Mapping[str, Saved] = {
    "attended": (
        {"query_expansion": {"strategy": "fixed", "attend": True, "length": 32}},
        lambda: [dense(48), MultiVectorMask(PUNCTUATION), of_tokens(Normalize)],
    ),
    "fixed": (
        {"query_expansion": {"strategy": "fixed", "length": 24}, "document_length": 40},
        lambda: [dense(48), MultiVectorMask(PUNCTUATION), of_tokens(Normalize)],
    ),
    "least": (
        {"query_expansion": {"strategy": "min", "length": 16}},
        lambda: [dense(48), MultiVectorMask([","], skiplist_tasks=["query", "document"])],
    ),
    "plain": (
        {"query_length": 16, "document_length": 24},
        lambda: [dense(32), MultiVectorMask(), of_tokens(Normalize)],
    ),
}
"""The knobs of sentence-transformers' Transformer, and the modules behind it."""
LAYOUTS = (*NATIVE, "pylate", "stanford")
BGE = "bge"


def save(folder: Path) -> None:
    """Write all models below a folder."""
    torch.manual_seed(0)
    bare = folder / "bare"
    tiny_models.randomized(BertModel(BertConfig(**{**ENCODER, "vocab_size": WORDS}))).save_pretrained(bare)
    for file in (TOKENIZER_FILE, "tokenizer_config.json"):
        shutil.copy(model_files.locate("", "") / file, bare / file)
    tokenizer = AutoTokenizer.from_pretrained(bare)
    tokenizer.model_max_length = 128
    prefixes = [AddedToken(prefix, normalized=False, special=True) for prefix in PROMPTS.values()]
    tokenizer.add_special_tokens({"additional_special_tokens": prefixes})
    tokenizer.save_pretrained(bare)
    for name, (knobs, modules) in NATIVE.items():
        whole: list[Any] = [Transformer(str(bare), **knobs), *modules()]
        MultiVectorEncoder(modules=whole, prompts=PROMPTS, device="cpu").save(str(folder / name))
    _save_as_pylate(folder / "fixed", folder / "pylate")
    _save_as_stanford(bare, folder / "stanford")
    _save_as_bge(bare, folder / BGE)


def _save_as_pylate(native: Path, folder: Path) -> None:
    """As PyLate 1 wrote it: masking and normalization are not among its modules."""
    shutil.copytree(native, folder)
    modules = [
        each
        for each in json.loads((folder / "modules.json").read_text())
        if each["type"].endswith(("Transformer", "Dense"))
    ]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    config = folder / modules[1]["path"] / "config.json"
    kept = {key: value for key, value in json.loads(config.read_text()).items() if not key.startswith("module_")}
    config.write_text(json.dumps(kept))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": false}')
    whole: dict[str, Any] = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 24,
        "document_length": 40,
        "attend_to_expansion_tokens": False,
        "skiplist_words": PUNCTUATION,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(whole))


def _save_as_stanford(bare: Path, folder: Path) -> None:
    shutil.copytree(bare, folder)
    weights = {f"bert.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(32, SIZE)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    told = {"query_maxlen": 20, "doc_maxlen": 30, "dim": 32, "mask_punctuation": True}
    (folder / "artifact.metadata").write_text(json.dumps(told))


def _save_as_bge(bare: Path, folder: Path) -> None:
    shutil.copytree(bare, folder)
    for name, size in (("sparse_linear.pt", 1), ("colbert_linear.pt", SIZE)):
        torch.save(torch.nn.Linear(SIZE, size).state_dict(), folder / name)


def expected(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Of each layout, side and text: the ids that the model sees, the places of its rows, and the rows."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in LAYOUTS:
        model = MultiVectorEncoder(str(folder / name), device="cpu")
        for side, encode in (("query", model.encode_query), ("document", model.encode_document)):
            for number, text in enumerate(TEXTS):
                key = f"{name}/{side}/{number}"
                features = model.preprocess([text], prompt=model.prompts[side], task=side)
                with torch.no_grad():
                    mask = model(features, task=side)["attention_mask"][0].bool()
                found[f"{key}/ids"] = features["input_ids"][0].numpy()
                found[f"{key}/places"] = torch.nonzero(mask)[:, 0].numpy()
                found[f"{key}/rows"] = encode(text, convert_to_numpy=True)
    return found | _of_bge(folder / BGE)


def _of_bge(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """By FlagEmbedding's formulas: a linear layer and ReLU of each token; one of each but the first, normalised."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    unused = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    sparse, colbert = torch.nn.Linear(SIZE, 1), torch.nn.Linear(SIZE, SIZE)
    sparse.load_state_dict(torch.load(folder / "sparse_linear.pt", weights_only=True))
    colbert.load_state_dict(torch.load(folder / "colbert_linear.pt", weights_only=True))
    for number, text in enumerate(TEXTS):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**encoded).last_hidden_state[0]
            weights = torch.relu(sparse(states))[:, 0].tolist()
            vectors = torch.nn.functional.normalize(colbert(states[1:]), dim=-1)
        by_id: dict[int, float] = {}
        for token_id, weight in zip(encoded["input_ids"][0].tolist(), weights, strict=True):
            if weight > 0 and token_id not in unused:
                by_id[token_id] = max(weight, by_id.get(token_id, 0.0))
        found[f"{BGE}/{number}/ids"] = encoded["input_ids"][0].numpy()
        found[f"{BGE}/{number}/indices"] = np.array(sorted(by_id), np.int64)
        found[f"{BGE}/{number}/weights"] = np.array([by_id[each] for each in sorted(by_id)], np.float32)
        found[f"{BGE}/{number}/rows"] = vectors.numpy()
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1])
    save(root)
    np.savez(root / "expected.npz", **expected(root))  # type: ignore[arg-type]  # all are arrays
