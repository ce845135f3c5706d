"""Small random models of the kinds that are served, made from a configuration, and what transformers says they give."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    ModernBertConfig,
    ModernBertModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from modelserver.model_files import locate

VOCABULARY = 1000
LENGTHS = (1, 3, 10, 200, 31, 64, 7, 1, 2, 100)
_FIRST_ID = 5
_SPREAD = 3.0
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

Pooling = Literal["cls", "last", "mean"]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A model, the part of it that gives hidden states, and how they are pooled."""

    whole: Any
    body: Any
    pooling: Pooling
    encoder_only: bool
    size: int

    def pooled(self, queries: list[list[int]]) -> npt.NDArray[np.float32]:
        """What transformers makes of the queries, one at a time, float32 [queries, hidden]."""
        return np.stack([self._pooled(query) for query in queries])

    def _pooled(self, query: list[int]) -> npt.NDArray[np.float32]:
        ids = torch.tensor([query])
        with torch.no_grad():
            hidden = self.body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        vector = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[self.pooling]
        return np.asarray(vector, np.float32)


def queries() -> list[list[int]]:
    """Random ids of several lengths."""
    rng = np.random.default_rng(5)
    return [rng.integers(_FIRST_ID, VOCABULARY, length).tolist() for length in LENGTHS]


def longest() -> list[int]:
    """A query as long as these models take."""
    return [_FIRST_ID] * 512


def limit_tokenizer(folder: Path) -> None:
    """Leave the tokenizer the words that these models know."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    words: dict[str, int] = content["model"]["vocab"]
    content["model"]["vocab"] = {word: place for word, place in words.items() if place < VOCABULARY}
    file.write_text(json.dumps(content), encoding="utf-8")


def save(model: TinyModel, folder: Path) -> None:
    """Write the model as sentence-transformers does, with MiniLM's tokenizer, whose ids are not used."""
    shutil.rmtree(folder, ignore_errors=True)
    model.whole.save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copy(locate("", "") / name, folder / name)
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
    pooling = {"word_embedding_dimension": model.size, **{mode: kind == model.pooling for kind, mode in modes.items()}}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")


def _qwen3() -> TinyModel:
    """The architecture of Qwen3-Embedding: a decoder, pooled at its last token."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    whole = randomized(Qwen3ForCausalLM(config))
    return TinyModel(whole, whole.model, "last", encoder_only=False, size=128)


def _modernbert() -> TinyModel:
    """An encoder with local and global attention in turn."""
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=512,
        local_attention=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    whole = randomized(ModernBertModel(config))
    return TinyModel(whole, whole, "mean", encoder_only=True, size=128)


def likeliest(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What transformers generates greedily after the prompt."""
    ids = list(prompt)
    for _ in range(tokens):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def randomized(model: Any) -> Any:
    """Weights spread wider than at the start of a training, so that attention is far from even."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(_SPREAD)
    return model.eval()


MODELS: dict[str, Callable[[], TinyModel]] = {"qwen3": _qwen3, "modernbert": _modernbert}
