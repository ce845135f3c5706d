"""Tokenize printable ASCII with a faster library, where it is shown to give the same ids.

The package `tokie` agrees with `tokenizers` on printable ASCII only (docs/adr/0001-tokenizer.md). So it gets nothing
else. It must pass a check against the model's tokenizer before it is used, and samples of its work are checked from
then on. After one difference it is not used again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import tokie
from tokenizers import Tokenizer as Reference
from typing_extensions import override

from aggregator.tokenizers.tokenizer import FastPath, OpenFast, Packed, is_plain, pack

_LOG = logging.getLogger(__name__)

OnCheck = Callable[[int, int], None]
"""Called with the number of checked texts, and of texts that gave other tokens."""

SAMPLE_EVERY = 256
"""One text in this many is tokenized again by the reference."""

_ONE_BY_ONE_BELOW = 16  # a batch call starts threads: up to here single calls are cheaper
_ASCII = "".join(chr(code) for code in range(0x20, 0x7F))
_EDGES = ("", " ", "  ", "a" * 99, "a" * 100, "a" * 101, "a" * 5000, "x " * 600, "Who's 3.14%? it's $5-a_day!!")
_RANDOM_TEXTS, _MAX_RANDOM_LENGTH = 400, 120  # with the vocabulary's pieces 1,200 texts, checked in 0.2 s
_VOCABULARY_WORDS, _WORDS_PER_TEXT = 4000, 10


class _Encoding(Protocol):
    ids: list[int]


class FlatTokenizer(Protocol):
    """The used part of a tokie.Tokenizer; its own stubs are incomplete."""

    def encode(self, text: str) -> _Encoding: ...

    def encode_batch_flat(self, texts: list[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]: ...


class TokieFastPath(FastPath):
    """`tokie` beside the reference tokenizer, for as long as the two agree."""

    def __init__(self, tokenizer: FlatTokenizer, reference: Reference, on_check: OnCheck) -> None:
        self._tokenizer = tokenizer
        self._reference = reference
        self._on_check = on_check
        self._until_check = SAMPLE_EVERY
        self.usable = True

    @override
    def tokenize(self, texts: Sequence[str]) -> Packed | None:
        """Packed int32 ids and lengths of printable ASCII texts; None once it has differed."""
        packed = _tokenize(self._tokenizer, texts)
        self._until_check -= len(texts)
        if self._until_check <= 0:
            self._until_check = SAMPLE_EVERY
            self._check_one(texts, packed)
        return packed if self.usable else None

    def _check_one(self, texts: Sequence[str], packed: Packed) -> None:
        ids, lengths = packed
        place = len(texts) // 2
        start = int(lengths[:place].sum())
        [encoded] = self._reference.encode_batch_fast([texts[place]])  # `encode` keeps the GIL
        same = ids[start : start + lengths[place]].tolist() == encoded.ids
        self._on_check(1, 0 if same else 1)
        if not same:
            self.usable = False
            _LOG.error("fast tokenizer differed and was switched off", extra={"text_length": len(texts[place])})


def fast_path(on_check: OnCheck) -> OpenFast:
    """What opens a tokenizer's fast path; `on_check` is called after each check of a sample."""
    return partial(open_fast_path, on_check=on_check)


def open_fast_path(file: Path, reference: Reference, on_check: OnCheck) -> FastPath | None:
    """The fast path for a tokenizer.json; None for another kind of model, or ids that differ."""
    if type(reference.model).__name__ != "WordPiece":
        return None
    try:
        opened = tokie.Tokenizer.from_json(str(file))
        opened.no_truncation()
        opened.no_padding()
        tokenizer = cast("FlatTokenizer", opened)
        texts = list(_probes(reference))
        ids, _ = _tokenize(tokenizer, texts)
    except Exception as error:  # noqa: BLE001 - the reference does the work after any error
        _LOG.warning("fast tokenizer failed its check and is not used", extra={"error": repr(error)})
        return None
    expected = [encoding.ids for encoding in reference.encode_batch_fast(texts)]
    if ids.tolist() != list(chain.from_iterable(expected)):
        _LOG.warning("fast tokenizer differed in its check and is not used")
        return None
    return TokieFastPath(tokenizer, reference, on_check)


def _tokenize(tokenizer: FlatTokenizer, texts: Sequence[str]) -> Packed:
    if len(texts) < _ONE_BY_ONE_BELOW:
        return pack([tokenizer.encode(text).ids for text in texts])
    ids, lengths = tokenizer.encode_batch_flat(texts if isinstance(texts, list) else list(texts))
    return ids.view(np.int32), lengths.astype(np.int32)


def _probes(reference: Reference) -> Iterator[str]:
    """Texts on which both must agree: edge cases, added tokens, random texts, and a large part of the vocabulary."""
    chance = random.Random(0)  # noqa: S311 - the same texts at every start
    yield from _EDGES
    for token in reference.get_added_tokens_decoder().values():
        if is_plain(token.content):
            yield from (token.content, f"so{token.content}so", f" {token.content.lower()} {token.content} ")
    for _ in range(_RANDOM_TEXTS):
        yield "".join(chance.choices(_ASCII, k=chance.randint(1, _MAX_RANDOM_LENGTH)))
    words = sorted(word.removeprefix("##") for word in reference.get_vocab() if is_plain(word))
    chosen = chance.sample(words, min(len(words), _VOCABULARY_WORDS))
    for start in range(0, len(chosen), _WORDS_PER_TEXT):
        yield " ".join(chosen[start : start + _WORDS_PER_TEXT])
        yield "".join(chosen[start : start + _WORDS_PER_TEXT])
