"""Where a text may be cut, for each kind of tokenizer: the tokens on either side are those of the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from aggregator.admission.tokenizers.fast_tokenizer import FastTokenizer
from aggregator.admission.tokenizers.text_cuts import find_cuts, part
from tests.fakes.tokenizers import wordpiece_files, write

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
CORPUS = [
    "who wrote it? they've written 1234 lines, isn't it so",
    "où est la gare  — 12 34 56 — 東京都千代田区 は どこ",
    "the world around us\n\nwas it so [MASK] <mask>",
]


def byte_level(*steps: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [AddedToken("<|end|>", special=True), AddedToken("  ", normalized=False)]
    tokenizer.train_from_iterator(
        CORPUS * 20, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 0)])
    return tokenizer


def split_by(pattern: str) -> Tokenizer:
    return byte_level(
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )


def unigram(*steps: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    special = [AddedToken("<s>", special=True), AddedToken("<mask>", lstrip=True, special=True)]
    tokenizer.train_from_iterator(
        CORPUS * 20, trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>", *special])
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def lone_words() -> Tokenizer:
    words = {word: number for number, word in enumerate(["[UNK]", *" ".join(CORPUS).split()])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(left=False), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "WordPiece": lambda: Tokenizer.from_buffer(wordpiece_files()["tokenizer.json"]),
    "byte-level BPE": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "GPT-2's pattern": lambda: split_by(GPT2),
    "Llama 3's pattern": lambda: split_by(LLAMA3),
    "Qwen's pattern": lambda: split_by(QWEN),
    "Unigram": lambda: unigram(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "Unigram, marked at the start only": lambda: unigram(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "Unigram of words": lambda: unigram(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()),
    "whole words": lone_words,
}
WORDS = st.sampled_from(
    [
        *("who", "wrote", "it's", "1234", "e\u0301tat", "İstanbul", "ﬁ", "東京", "[MASK]", "<mask>", "</s>", "a"),
        *("…", "x" * 101, "<|end|>", "ΟΔΟΣ", "\u0301", "<s>", "'s"),
    ]
)
GAPS = st.sampled_from([" ", " ", " ", "  ", "\n", "", ", ", "\t ", "\u00a0", "\u200b", "\u3000", "。"])
TEXTS = st.lists(st.tuples(WORDS | st.text(max_size=6), GAPS), min_size=1, max_size=30).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda name: name)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made = MAKERS[request.param]()
    made.no_truncation()
    made.no_padding()
    return made


@pytest.fixture(scope="module")
def opened(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    return FastTokenizer(write(files, tmp_path_factory.mktemp("tokenizer")), fast=False)


def definition(tokenizer: Tokenizer) -> Any:
    return json.loads(tokenizer.to_str())


def body(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@settings(deadline=None, max_examples=50)
@given(TEXTS)
def test_wherever_a_text_is_cut_the_tokens_on_either_side_are_those_of_the_whole(
    tokenizer: Tokenizer, text: str
) -> None:
    cuts = find_cuts(definition(tokenizer))
    assert cuts is not None
    whole = body(tokenizer, text)
    for found in cuts.finditer(text):
        before, after = text[: found.end()], text[found.end() :]
        assert body(tokenizer, before) + body(tokenizer, after) == whole


@pytest.mark.parametrize("keep_end", [False, True])
@settings(deadline=None, max_examples=50)
@given(TEXTS, st.integers(4, 60), st.integers(3, 20))
def test_a_part_with_more_tokens_than_are_taken_is_truncated_as_the_whole_is(
    opened: FastTokenizer, keep_end: bool, text: str, size: int, limit: int
) -> None:
    found = opened.part(text, size, keep_end=keep_end)
    if found is None:
        return
    assert text.endswith(found) if keep_end else text.startswith(found)
    assert found == text if len(text) <= size else len(found) <= size
    ids, whole = opened.count([found]).ids, opened.count([text]).ids
    if len(ids) > limit:
        assert len(whole) > limit
        cut = opened.truncate_ids(whole.tobytes(), limit, keep_end=keep_end)
        assert opened.truncate_ids(ids.tobytes(), limit, keep_end=keep_end) == cut


@pytest.mark.parametrize("keep_end", [False, True])
@settings(deadline=None, max_examples=50)
@given(TEXTS, st.integers(4, 60))
def test_the_tokens_of_parts_are_joined_to_those_of_the_whole(
    opened: FastTokenizer, keep_end: bool, text: str, size: int
) -> None:
    found = opened.part(text, size, keep_end=keep_end)
    if found is None:
        return
    rest = text[: len(text) - len(found)] if keep_end else text[len(found) :]
    before, after = (opened.count([each]).ids.tobytes() for each in ((rest, found) if keep_end else (found, rest)))
    assert opened.join_ids(before, after) == opened.count([text]).ids.tobytes()


def test_ideographs_are_a_place_where_each_of_them_is_a_word() -> None:
    cuts = find_cuts(json.loads(wordpiece_files()["tokenizer.json"]))
    assert cuts is not None
    text = "東京都千代田区" * 100
    assert part(text, cuts, 100, keep_end=False) == text[:51]
    assert len(part(text, cuts, 100, keep_end=True) or "") in range(50, 101)
    other = find_cuts(definition(MAKERS["Unigram"]()))
    assert other is not None
    assert part(text, other, 100, keep_end=False) is None


def changed(**changes: Any) -> Any:
    return json.loads(wordpiece_files()["tokenizer.json"]) | changes


def added(content: str) -> Any:
    one = {"id": 9, "content": content, "special": False, "single_word": False, "lstrip": False, "rstrip": True}
    return changed(added_tokens=[one | {"normalized": True}])


@pytest.mark.parametrize(
    "unknown",
    [
        changed(pre_tokenizer=None),
        changed(pre_tokenizer={"type": "FixedLength", "length": 3}),
        changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}),
        changed(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}),
        changed(
            pre_tokenizer={
                "type": "Split", "pattern": {"Regex": "a b"}, "behavior": "Isolated", "invert": False
            }
        ),
        changed(
            pre_tokenizer={
                "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
            }
        ),
        changed(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        changed(normalizer={"type": "Prepend", "prepend": "▁"}),
        changed(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
        added("New York"),
        added("foo"),
        added(" "),
        added("Ａ"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_not_known_to_split_there_has_no_place(unknown: Any) -> None:
    assert find_cuts(unknown) is None


def test_a_text_is_searched_for_a_place_for_so_long_only() -> None:
    cuts = find_cuts(json.loads(wordpiece_files()["tokenizer.json"]))
    assert cuts is not None
    text = "x" * 20_000 + " y" * 20_000
    assert part(text, cuts, 20_000, keep_end=False) is None
    assert len(part(text, cuts, 45_000, keep_end=False) or "") in range(40_904, 40_907)
    assert part(text[::-1], cuts, 20_000, keep_end=True) is None
    assert np.all([len(part(text, cuts, size, keep_end=True) or "") <= size for size in (100, 10_000, 30_000)])
