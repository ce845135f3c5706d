"""Join two texts into one sequence as the model's own tokenizer does, from tokens of each text by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer as Reference

from aggregator.tokenizers.tokenizer import Tokenizer

_FIRST, _SECOND = 0, 1
_ODD_PAIRS = (
    ("what is rain?", "Water that falls."),
    ("  blanks  ", "\ttabs and\nlines "),
    ("Ünï çödé 雨 🌧️ ﬁ", "ＷＩＤＥ e\u0301 \u200b \u00a0"),
    ("[SEP] </s> <s> [CLS]", "<|endoftext|> [SEP]"),
    ("it's 3.14%, $5-a_day!!", "a" * 300),
    ("x " * 300, "."),
)
"""Parts of texts that a tokenizer could treat otherwise in a pair than alone: ends, special tokens, long words."""


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens before, between and after two texts; int32 little endian."""

    before: bytes
    between: bytes
    after: bytes

    def join(self, first: bytes, second: bytes) -> bytes:
        """The sequence of two texts, given their tokens without special ones."""
        return self.before + first + self.between + second + self.after


def checked_frame(tokenizer: Tokenizer, *, token_types: bool) -> PairFrame:
    """The frame of a tokenizer, which joins odd pairs as the tokenizer itself does.

    `token_types`: the model tells the second text by token type 1, which begins with it. Raises ValueError where a
    joined pair would differ.
    """
    reference = tokenizer.reference
    frame = _frame(reference)
    for first, second in _ODD_PAIRS:
        [encoded] = reference.encode_batch([(first, second)])
        joined = frame.join(_bare(tokenizer, first), _bare(tokenizer, second))
        if joined != np.array(encoded.ids, "<i4").tobytes():
            raise ValueError(
                f"its tokenizer gives the pair {first!r}, {second!r} other tokens than those of its texts, joined"
                " as it joins short ones: pairs of this model cannot be made"
            )
        begins = encoded.sequence_ids.index(_SECOND)
        if token_types and encoded.type_ids != [0] * begins + [1] * (len(encoded.ids) - begins):
            raise ValueError(
                f"its tokenizer gives the pair {first!r}, {second!r} token types that are not 0 up to its second text,"
                " and 1 from there on: pairs of this model cannot be made"
            )
    return frame


def _bare(tokenizer: Tokenizer, text: str) -> bytes:
    return tokenizer.without_special(tokenizer.count((text,)).ids.tobytes())


def _frame(reference: Reference) -> PairFrame:
    [encoded] = reference.encode_batch([("a", "b")])
    texts = encoded.sequence_ids  # None for a special token
    if _FIRST not in texts or _SECOND not in texts:
        raise ValueError("its tokenizer drops one text of a pair")
    first, second = texts.index(_FIRST), texts.index(_SECOND)
    after_first, after_second = first + texts.count(_FIRST), second + texts.count(_SECOND)
    ids = np.array(encoded.ids, "<i4")
    return PairFrame(ids[:first].tobytes(), ids[after_first:second].tobytes(), ids[after_second:].tobytes())
