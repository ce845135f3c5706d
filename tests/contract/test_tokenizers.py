"""What a fake tokenizer and a real one must do alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aggregator.tokenizers.tokenizer import Tokenizer
from tests.support.fake_tokenizer import FakeTokenizer, wordpiece_files, write

TEXTS = ["hello world", "who", "hello world", "naïve", "", "hello who hello who"]


@pytest.fixture(params=["fake", "reference"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "fake":
        return FakeTokenizer()
    return Tokenizer(write(wordpiece_files(), tmp_path))


def test_texts_are_packed_end_to_end_in_their_order(tokenizer: Tokenizer) -> None:
    together = tokenizer.count(TEXTS)
    alone = [tokenizer.count([text]) for text in TEXTS]
    assert together.ids.dtype == together.lengths.dtype == np.int32
    assert together.ids.tobytes() == b"".join(batch.ids.tobytes() for batch in alone)
    assert together.lengths.tolist() == [len(batch.ids) for batch in alone]


def test_no_text_is_no_token(tokenizer: Tokenizer) -> None:
    counted = tokenizer.count([])
    assert counted.ids.dtype == np.int32
    assert (len(counted.ids), len(counted.lengths)) == (0, 0)


def test_special_tokens_stand_around_every_text_even_an_empty_one(tokenizer: Tokenizer) -> None:
    empty, word = tokenizer.count([""]).ids, tokenizer.count(["who"]).ids
    assert len(empty) == 2
    assert (word[0], word[-1]) == (empty[0], empty[1])


def test_counting_does_not_truncate(tokenizer: Tokenizer) -> None:
    assert tokenizer.count(["who " * 5000]).lengths.tolist() == [5002]


@pytest.mark.parametrize("keep_end", [False, True])
def test_a_cut_keeps_the_special_tokens_and_the_chosen_end(tokenizer: Tokenizer, keep_end: bool) -> None:
    text = "hello world who hello"
    whole = tokenizer.count([text]).ids
    expected = [whole[0], *(whole[-3:-1] if keep_end else whole[1:3]), whole[-1]]
    assert np.frombuffer(tokenizer.truncate_ids(whole.tobytes(), 4, keep_end=keep_end), "<i4").tolist() == expected


def test_what_fits_is_not_cut(tokenizer: Tokenizer) -> None:
    whole = tokenizer.count(["hello who"]).ids.tobytes()
    assert tokenizer.truncate_ids(whole, 4, keep_end=False) == whole
    assert tokenizer.truncate_ids(whole, 4, keep_end=True) == whole
