"""Compare the tokenizer that aggregators get with the tokenizer that transformers makes of all files of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from modelserver.errors import CannotStart
from modelserver.model_files import TOKENIZER_FILE, ModelFiles, lowered, lowers, sentence_config, tokenizer_arguments

TEXTS = (
    "",
    " ",
    "plain words, one after another",
    "UPPER Case, mIxEd cAsE",
    "Crème brûlée, naïve Ångström, e\u0301 and \u00e9, ﬁ, Ⅳ, İstanbul, Straße",
    "東京都 と 北京 그리고 서울, ไทย, हिन्दी, العربية",
    "👩‍👩‍👧‍👦 🇨🇭 ❤️ 👍🏽",
    "a\x00b\x01c\x7fd\u200be\u00adf\ufeffg\ufffdh",
    "  leading,   inner and trailing  ",
    "\tlines\r\nand\ntabs\t\n",
    "it's don't 3.14% $5 a_b-c [x] <y> {z} user@example.com https://example.com/?q=1&r=2",
    "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <unk> <mask> <pad> <|endoftext|> <|im_start|>",
    "[sep]<S>so[SEP]so",
    "abc" * 300,
    "long text " * 1000,
)
"""Texts on which tokenizers of the same vocabulary differ."""
_PAIR = ("how many?", "as many as there are")
_ADDED_TOKENS = 500  # some models add thousands
_SHOWN = 12  # tokens from the first difference on
_BLANKS = str.maketrans("Ġ▁", "  ")
"""How vocabularies write a blank."""


def check_tokenizer(files: ModelFiles) -> None:
    """Load the tokenizer as an aggregator would. Raises CannotStart if it cannot be loaded or is another model's."""
    known = served_tokenizer(files).get_vocab(with_added_tokens=False)
    largest = max(known.values(), default=0)
    if largest >= files.vocabulary_size > 0:
        raise CannotStart(
            f"the tokenizer of {files.path} has token {largest}, and the model knows {files.vocabulary_size}: it is"
            " another model's"
        )


def compare_tokenizer(files: ModelFiles, *, trust_remote_code: bool) -> None:
    """Tokenize odd texts as an aggregator does and as transformers does; imports torch.

    Raises CannotStart for a text with other tokens: some file of the model has an effect that tokenizer.json lacks.
    """
    served = served_tokenizer(files)
    reference = _reference(files, trust_remote_code=trust_remote_code)
    added = islice({**served.get_added_tokens_decoder(), **reference.added_tokens_decoder}.values(), _ADDED_TOKENS)
    for text in (*TEXTS, *(f"So {token.content} so{token.content}SO" for token in added)):
        ours = served.encode(text).ids
        theirs = reference(text, truncation=False, padding=False, verbose=False)["input_ids"]
        if ours != theirs:
            raise CannotStart(_difference(files, text, ours, theirs))
    if files.scores:
        _compare_pair(files, served, reference)


def _compare_pair(files: ModelFiles, served: Tokenizer, reference: Any) -> None:
    """Raises CannotStart for a pair that the two join otherwise, or whose token types only one of them gives."""
    ours = served.encode(*_PAIR)
    theirs = reference(*_PAIR, truncation=False, padding=False, verbose=False)
    if ours.ids != theirs["input_ids"]:
        raise CannotStart(_difference(files, " and ".join(_PAIR), ours.ids, theirs["input_ids"]))
    typed = joins_with_token_types(files)
    if any(theirs.get("token_type_ids", ())) is not typed or (typed and ours.type_ids != theirs["token_type_ids"]):
        raise CannotStart(
            f"the {TOKENIZER_FILE} of {files.path} gives the tokens of a pair the types {ours.type_ids}, and"
            f" transformers' AutoTokenizer {theirs.get('token_type_ids', 'none')}: set model_input_names in"
            " tokenizer_config.json, or save both with transformers.AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )


def joins_with_token_types(files: ModelFiles) -> bool:
    """Whether the second text of a pair has tokens of type 1, which transformers hands to the model."""
    inputs = json.loads(files.tokenizer.get("tokenizer_config.json", b"{}")).get("model_input_names")
    return (inputs is None or "token_type_ids" in inputs) and 1 in served_tokenizer(files).encode("a", "b").type_ids


def prompt_tokens(files: ModelFiles) -> tuple[tuple[int, ...], ...]:
    """The tokens with which a prompted input begins, of each prompt that the model has, longest first.

    Raises CannotStart for a prompt whose last token depends on the text after it: it is not told apart.
    """
    tokenizer, found = served_tokenizer(files), set[tuple[int, ...]]()
    for prompt in filter(None, (files.query_prompt, files.document_prompt)):
        encoded = tokenizer.encode(prompt)
        count = len(encoded.ids) - (encoded.special_tokens_mask[-1] if encoded.ids else 0)
        ids = encoded.ids[:count]
        after = [word.translate(_BLANKS).removeprefix("##") for word in tokenizer.get_vocab(with_added_tokens=False)]
        both = tokenizer.encode_batch_fast([prompt + text for text in after])
        if text := next((text for text, each in zip(after, both, strict=True) if each.ids[:count] != ids), None):
            raise CannotStart(
                f"{files.path} leaves its prompts out of the pooling (include_prompt), and the tokens of its prompt"
                f" {prompt!r} are others before {text!r}: they cannot be told from the text's. Save the model with"
                " include_prompt: true if it was trained so, or with a prompt that ends where a token does"
            )
        found.add(tuple(ids))
    return tuple(sorted(found, key=len, reverse=True))


def served_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer that aggregators get, which neither cuts nor fills up. Raises CannotStart."""
    try:
        tokenizer = Tokenizer.from_buffer(files.tokenizer[TOKENIZER_FILE])
    except Exception as error:
        raise CannotStart(f"the tokenizer of {files.path} cannot be loaded: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _reference(files: ModelFiles, *, trust_remote_code: bool) -> Any:
    """The tokenizer that transformers makes of the folder, lowering as sentence-transformers adds it."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - loads torch, and the image of the synthetic engine lacks it

    arguments = tokenizer_arguments(sentence_config(files.path))
    try:
        reference = AutoTokenizer.from_pretrained(files.path, trust_remote_code=trust_remote_code, **arguments)
    except Exception as error:
        raise CannotStart(
            f"transformers cannot load the tokenizer of {files.path}: {type(error).__name__}:"
            f" {' '.join(str(error).split())[:400]}"
        ) from error
    if lowers(files.path):
        backend = reference.backend_tokenizer
        backend.normalizer = Tokenizer.from_buffer(lowered(backend.to_str().encode())).normalizer
    return reference


def _difference(files: ModelFiles, text: str, ours: Sequence[int], theirs: Sequence[int]) -> str:
    same = next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), len(ours))
    start = min(same, len(theirs))
    return (
        f"the {TOKENIZER_FILE} of {files.path} and transformers' AutoTokenizer differ: the text {text[:80]!r} has"
        f" tokens {list(ours[start : start + _SHOWN])} in the one and {list(theirs[start : start + _SHOWN])} in the"
        f" other, from token {start} on. Another file of the tokenizer has an effect: write it into {TOKENIZER_FILE}"
        " with transformers.AutoTokenizer.from_pretrained(…).save_pretrained(…), or correct it"
    )
