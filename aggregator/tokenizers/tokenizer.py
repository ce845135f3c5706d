"""Tokenize texts exactly as the model does, in batches, into packed arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Reference
from tokenizers.decoders import DecodeStream
from typing_extensions import ParamSpec

P = ParamSpec("P")
T = TypeVar("T")

TOKENIZER_FILE = "tokenizer.json"
"""The file that must be among a tokenizer's: the fast tokenizer's whole definition."""
Packed = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
"""Token ids of several texts, end to end, and the length of each."""
_INT32 = np.dtype("<i4")
_SURROGATES = "utf-16-le", "surrogatepass"


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of several texts, end to end, special tokens included, nothing truncated.

    `ids` int32 little endian [Σ lengths], `lengths` int32 [texts].
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class FastPath(ABC):
    """A faster way to the same ids for printable ASCII, as the wing `fast_tokenizer` has one."""

    usable = True
    """False once its ids have differed."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Packed | None:
        """The ids of texts, special tokens included; None once they have differed."""


_PANIC = "PanicException"
"""What PyO3 raises for a panic in Rust. It derives from BaseException, and cannot be imported."""


def survives_panic(work: Callable[P, T]) -> Callable[P, T]:
    """The same call of a tokenizer's binding, whose panic is a ValueError and ends no thread and no process."""

    @wraps(work)
    def survived(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise ValueError("the tokenizer panicked") from None

    return survived


OpenFast = Callable[[Path, Reference], FastPath | None]
"""Opens the fast path of a tokenizer.json; None where it is not shown to give the reference's ids."""


class Tokenizer:
    """The tokenizer of one model, from the folder with its files. Thread-safe, called off the event loop.

    Printable ASCII takes the path that `open_fast` opens, if it opens one.
    """

    def __init__(self, folder: Path, open_fast: OpenFast | None = None) -> None:
        """Raises OSError or ValueError for files that are not a tokenizer."""
        file = folder / TOKENIZER_FILE
        self._reference = _open_reference(file)
        self._fast = open_fast(file, self._reference) if open_fast is not None else None
        self._prefix, self._suffix = _special_ids(self._reference)
        self.folder = folder

    @property
    def special_ids(self) -> tuple[bytes, bytes]:
        """The special tokens before and after a text; int32 little endian."""
        return self._prefix, self._suffix

    @property
    def reference(self) -> Reference:
        """The tokenizer that the model itself uses."""
        return self._reference

    @property
    def uses_fast_path(self) -> bool:
        return self._fast is not None and self._fast.usable

    @survives_panic
    def count(self, texts: Sequence[str]) -> TokenBatch:
        fast = self._fast
        if fast is None or not fast.usable:
            return TokenBatch(*self._by_reference(texts))
        if is_plain("".join(texts)):
            return TokenBatch(*(fast.tokenize(texts) or self._by_reference(texts)))
        plain = [index for index, text in enumerate(texts) if is_plain(text)]
        if not plain:
            return TokenBatch(*self._by_reference(texts))
        other = [index for index, text in enumerate(texts) if not is_plain(text)]
        packed = fast.tokenize([texts[index] for index in plain])
        if packed is None:
            return TokenBatch(*self._by_reference(texts))
        return _merged(packed, plain, self._by_reference([texts[index] for index in other]), other)

    def without_special(self, token_ids: bytes) -> bytes:
        """The token ids of a text without the special tokens around it; int32 little endian."""
        return token_ids.removeprefix(self._prefix).removesuffix(self._suffix)

    @survives_panic
    def offsets(self, text: str, *, special: bool) -> list[tuple[int, int]]:
        """The characters of each token of a text: its first, and the one behind its last; (0, 0) of a `special` one."""
        [encoded] = self._reference.encode_batch([text], add_special_tokens=special)  # `encode` keeps the GIL
        return list(encoded.offsets)

    @survives_panic
    def detokenizer(self, prompt_ids: bytes) -> Detokenizer:
        """The detokenizer of the text after these ids, int32 little endian."""
        return Detokenizer(self._reference, np.frombuffer(prompt_ids, _INT32).tolist())

    def truncate_ids(self, token_ids: bytes, max_tokens: int, *, keep_end: bool) -> bytes:
        """The token ids of a text truncated to `max_tokens`, special tokens kept; int32 little endian."""
        size = max_tokens * _INT32.itemsize
        if len(token_ids) <= size:
            return token_ids
        before = self._prefix if token_ids.startswith(self._prefix) else b""
        after = self._suffix if token_ids.endswith(self._suffix) else b""
        room = size - len(before) - len(after)
        if room <= 0:
            return token_ids[:size]
        body = token_ids[len(before) : len(token_ids) - len(after)]
        return before + (body[-room:] if keep_end else body[:room]) + after

    def _by_reference(self, texts: Sequence[str]) -> Packed:
        try:
            encodings = self._reference.encode_batch_fast(texts)
        except TypeError:  # one lone surrogate, which UTF-8 cannot hold, fails the whole batch
            encodings = self._reference.encode_batch_fast([_without_surrogates(text) for text in texts])
        return pack([encoding.ids for encoding in encodings])


class Detokenizer:
    """Turns the tokens of one text into characters; the bytes of an incomplete character wait for the rest."""

    def __init__(self, reference: Reference, prompt_ids: list[int]) -> None:
        self._reference = reference
        self._stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)

    @survives_panic
    def step(self, token_id: int) -> str:
        """The characters that this token completes; none for a special token."""
        try:
            return self._stream.step(self._reference, token_id) or ""
        except Exception:  # noqa: BLE001 - the binding's own error, for bytes that can never be UTF-8
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._stream.step(self._reference, token_id) or ""


def is_plain(text: str) -> bool:
    """Whether a text is printable ASCII."""
    return text.isascii() and text.isprintable()


def pack(rows: Sequence[Sequence[int]]) -> Packed:
    """Lists of ids as one packed array and their lengths."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def _open_reference(file: Path) -> Reference:
    content = file.read_bytes()
    try:
        reference = survives_panic(Reference.from_buffer)(content)
    except Exception as error:  # the binding raises bare Exception
        raise ValueError(f"{file} is not a tokenizer: {error}") from error
    reference.no_truncation()
    reference.no_padding()
    return reference


def _special_ids(reference: Reference) -> tuple[bytes, bytes]:
    """The special tokens that the tokenizer adds before and after a text; int32 little endian."""
    bare, whole = (reference.encode_batch_fast(["a"], add_special_tokens=special)[0].ids for special in (False, True))
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return np.array(whole[:start], _INT32).tobytes(), np.array(whole[start + len(bare) :], _INT32).tobytes()
    return b"", b""


def _merged(first: Packed, first_places: list[int], second: Packed, second_places: list[int]) -> TokenBatch:
    """Two packed batches, merged in the order of their texts."""
    ids = np.concatenate((first[0], second[0]))
    lengths = np.concatenate((first[1], second[1]))
    order = np.argsort(np.concatenate((first_places, second_places)), kind="stable")
    starts = np.cumsum(lengths) - lengths
    ordered = lengths[order]
    shift = starts[order] - (np.cumsum(ordered) - ordered)
    return TokenBatch(ids[np.arange(len(ids)) + np.repeat(shift, ordered)], ordered)


def _without_surrogates(text: str) -> str:
    return text.encode(*_SURROGATES).decode("utf-16-le", "replace")
