"""Tokenizers without a model: a fake one, and the files of a small real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
from typing_extensions import override

from aggregator.tokenizers.tokenizer import Detokenizer, TokenBatch, Tokenizer

FIRST, LAST = 1, 2
"""What FakeTokenizer puts before and after every text."""


class FakeTokenizer(Tokenizer):
    """One token per word, its id the word's number or hash; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    @override
    def count(self, texts: Sequence[str]) -> TokenBatch:
        self.calls.append(tuple(texts))
        rows = [self.ids(text) for text in texts]
        ids = np.concatenate([np.empty(0, np.int32), *rows])
        return TokenBatch(ids.astype(np.int32), np.array([len(row) for row in rows], np.int32))

    @override
    def truncate_ids(self, token_ids: bytes, max_tokens: int, *, keep_end: bool) -> bytes:
        ids = np.frombuffer(token_ids, np.int32)
        if len(ids) <= max_tokens:
            return token_ids
        body = ids[1:-1]
        room = max_tokens - 2
        body = body[len(body) - room :] if keep_end else body[:room]
        return np.concatenate((ids[:1], body, ids[-1:])).tobytes()

    @property
    @override
    def special_ids(self) -> tuple[bytes, bytes]:
        return FIRST.to_bytes(4, "little"), LAST.to_bytes(4, "little")

    @override
    def without_special(self, token_ids: bytes) -> bytes:
        return token_ids[4:-4]

    @property
    @override
    def reference(self) -> Any:
        return FakeReference()

    @staticmethod
    def ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        words = [int(word) if word.isdigit() else 10 + crc32(word.encode()) % 30_000 for word in text.split()]
        return np.array([FIRST, *words, LAST], np.int32)


class FakeReference:
    """Joins two texts as BERT does: FIRST, the first text, LAST, the second text, LAST."""

    def encode_batch(self, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        return [self._encoded(*pair) for pair in pairs]

    @staticmethod
    def _encoded(first: str, second: str) -> Any:
        ids = [FakeTokenizer.ids(text)[1:-1].tolist() for text in (first, second)]
        return SimpleNamespace(
            ids=[FIRST, *ids[0], LAST, *ids[1], LAST],
            sequence_ids=[None, *[0] * len(ids[0]), None, *[1] * len(ids[1]), None],
            type_ids=[0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1),
        )


class Pieces(Detokenizer):
    """A detokenizer whose tokens are what `spelled` says of each id, and the tokenizer of these pieces."""

    def __init__(self, spelled: Callable[[int], str]) -> None:
        self._spelled = spelled

    @override
    def step(self, token_id: int) -> str:
        return self._spelled(token_id)

    def piece(self, token_id: int) -> tuple[str, bytes]:
        return self.step(token_id), self.step(token_id).encode()

    def detokenizer(self, prompt_ids: bytes) -> Pieces:
        del prompt_ids
        return self


class Letters(Pieces):
    """Token id n is the letter of that code."""

    def __init__(self) -> None:
        super().__init__(chr)


def wordpiece_files(*, words: Sequence[str] = ()) -> dict[str, bytes]:
    """The files of a small BERT tokenizer: letters, digits, punctuation, a few words, lower-cased."""
    pieces = [chr(code) for code in range(0x21, 0x7F) if not chr(code).isupper()]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{piece}" for piece in pieces)]
    vocabulary += [*dict.fromkeys(("hello", "world", "who", "##ing", "probe", *words))]
    ids = {piece: place for place, piece in enumerate(vocabulary)}
    special = [
        {"id": ids[name], "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for name in vocabulary[:5]
    ]  # fmt: skip
    definition = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")},
        },
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": ids},
    }  # fmt: skip
    return {"tokenizer.json": json.dumps(definition).encode(), "tokenizer_config.json": b"{}"}


def write(files: dict[str, bytes], folder: Path) -> Path:
    """Put files into a folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
