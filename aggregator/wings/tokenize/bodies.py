"""The bodies of /tokenize and /detokenize, as vLLM's server has them, and their answers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from aggregator.admission.model_revision import ModelRevision
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.json_bounds import holds_more
from aggregator.tokenizers.tokenizer import TokenBatch

MANY_IDS = 4096
"""Written as numbers in half a millisecond."""
MANY_TOKENS = 64
"""Each takes 5 to 10 us to become text."""

_OTHER_FIELDS = 1
"""Of a body of token ids."""


class Tokenize(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /tokenize`; `return_token_offsets`: with each token's place in the text, as at vLLM's render routes."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_offsets: bool = False


class Detokenize(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


TOKENIZE, DETOKENIZE = msgspec.json.Decoder(Tokenize), msgspec.json.Decoder(Detokenize)


def read_detokenize(data: bytes, *, most: int) -> Detokenize:
    """The body of a call; more ids than `most` are not decoded, as each takes 50 ns and 32 bytes. Raises FieldError."""
    if holds_more(data, b",", most + _OTHER_FIELDS):
        raise FieldError(f"more than {most} token ids", "tokens")
    return decode_body(DETOKENIZE, data)


def tokenized(served: ModelRevision, asked: Tokenize, counted: TokenBatch) -> bytes:
    """The answer with the tokens of a text, which are counted already."""
    ids = counted.ids
    if not asked.add_special_tokens:
        ids = np.frombuffer(served.tokenizer.without_special(ids.tobytes()), "<i4")
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": served.description.max_input_tokens}
    if asked.return_token_offsets:
        answer["token_offsets"] = served.tokenizer.offsets(asked.prompt, special=asked.add_special_tokens)
    return msgspec.json.encode({**answer, "tokens": ids.tolist()})


def detokenized(served: ModelRevision, asked: Detokenize) -> bytes:
    """The answer with the text of tokens. Raises FieldError."""
    size = served.description.vocabulary_size
    if any(token >= size for token in asked.tokens):
        raise FieldError(f"a token id is not below {size}, the size of the vocabulary", "tokens")
    step = served.tokenizer.detokenizer(b"").step
    return msgspec.json.encode({"prompt": "".join(map(step, asked.tokens))})
