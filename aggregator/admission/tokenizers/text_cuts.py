"""Find where a text can be cut so that the tokens of both parts are those of the whole, by the tokenizer's own file.

A tokenizer that first splits a text into words gives a word the same tokens in any context. Only components that are
known to split at the places named here are accepted; with any other, a text has no such place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_Component = Mapping[str, Any]

Cuts = re.Pattern[str]
"""Matches what is before a place where a text can be cut."""

_WORDS = r"[A-Za-z0-9](?= [A-Za-z0-9])"
"""A single space between two letters or digits of ASCII; the space goes with what follows."""
_IDEOGRAPHS = r"[\u4e00-\u9fff](?=[\u4e00-\u9fff])"
_SEARCHED = 4096
"""Characters that are searched for a place: places are usually a few characters apart."""

_LOCAL_NORMALIZERS = frozenset(
    ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Precompiled", "Nmt")
)
_SPLITTING = frozenset(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"))
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITTING_PATTERNS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    _CONTRACTIONS + _REST,  # Qwen 2 and 3
    _CONTRACTIONS + r"{1,3}" + _REST,  # cl100k, Llama 3
)


def find_cuts(definition: _Component) -> Cuts | None:
    """The pattern of places for a tokenizer.json; None if none is known."""
    normalizers = list(_flat(definition.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_flat(definition.get("pre_tokenizer"), "pretokenizers"))
    if not all(map(_is_local, normalizers)) or not pre_tokenizers or not _splits(pre_tokenizers[0]):
        return None
    if not all(_stands_apart(token["content"]) for token in definition.get("added_tokens") or ()):
        return None
    spaces_ideographs = any(
        each["type"] == "BertNormalizer" and each.get("handle_chinese_chars", True) for each in normalizers
    )
    if spaces_ideographs and pre_tokenizers[0]["type"] in _SPLITTING:
        return re.compile(f"{_WORDS}|{_IDEOGRAPHS}")
    return re.compile(_WORDS)


def part(text: str, cuts: Cuts, characters: int, *, keep_end: bool) -> str | None:
    """The start or end of a longer text, up to the last place within so many characters; None if there is none."""
    searched = min(characters // 2, _SEARCHED)
    if keep_end:
        start = len(text) - characters
        found = cuts.search(text, start, start + searched)
        return None if found is None else text[found.end() :]
    found = cuts.search(text, characters - searched, characters)
    return None if found is None else text[: found.end()]


def _flat(component: _Component | None, name: str) -> Iterator[_Component]:
    if component is None:
        return
    if component["type"] == "Sequence":
        for each in component[name]:
            yield from _flat(each, name)
    else:
        yield component


def _is_local(normalizer: _Component) -> bool:
    """Whether it treats a word the same in any context, and keeps the spaces between words."""
    kind = normalizer["type"]
    if kind == "Replace":
        pattern = normalizer["pattern"]
        return pattern.get("Regex") == " {2,}" or _stands_apart(pattern.get("String", ""))
    return kind in _LOCAL_NORMALIZERS or (kind == "Strip" and not normalizer["strip_left"])


def _splits(pre_tokenizer: _Component) -> bool:
    """Whether it splits at every place first, so that later components see single words."""
    match pre_tokenizer["type"]:
        case "ByteLevel":
            return bool(pre_tokenizer.get("use_regex", True))
        case "Metaspace":
            return bool(pre_tokenizer.get("split", True))
        case "Split":
            pattern = pre_tokenizer["pattern"].get("Regex")
            how = (pre_tokenizer["behavior"], pre_tokenizer["invert"])
            return pattern in _SPLITTING_PATTERNS and how in {("Isolated", False), ("Removed", True)}
        case kind:
            return kind in _SPLITTING


def _stands_apart(content: str) -> bool:
    """Whether an added token or a replaced string can neither contain a place nor touch one."""
    if content.isspace():
        return content != " "
    words = any(char.isspace() for char in content) or content[:1].isalnum() or content[-1:].isalnum()
    return bool(content) and content.isascii() and not words
