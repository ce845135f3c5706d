"""The fields of bodies for a vector a token over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aggregator.wings.token_vectors.rules import Rules
from tests.support.fake_engine import FakeEngine
from tests.support.http_field import TEXTS, Field, Form
from tests.support.listening import DESCRIPTION, slow_engine

POOLING = [
    Field("input", "a text"),
    Field("model", "minilm"),
    Field("task", "token_embed"),
    Field("task", "classify"),
    Field("encoding_format", "base64", "rows of float32, little endian, one behind the other"),
    Field("input_type", "query", "whose rules make tokens of a text; absent: those of documents"),
    Field("normalize", False, "absent: as the model's files say"),
    Field("truncate_prompt_tokens", 20),
    Field("priority", 1),
    Field("request_id", "mine"),
    Field("user", "a"),
    Field("cache_salt", "salt", "equal inputs share one computation"),
    Field("add_special_tokens", False),
    Field("messages", [{"role": "user", "content": "a text"}]),
    Field("truncation_side", "left"),
    Field("use_activation", True),
    Field("dimensions", 4),
]
TOKENS = replace(DESCRIPTION, matryoshka_dimensions=frozenset(), pools_spans=True, details=Rules())
FORMS: list[Form] = [("vLLM", "/pooling", {"input": TEXTS}, POOLING)]
DOOR: tuple[Callable[[], FakeEngine], Sequence[Form]] = (lambda: slow_engine(TOKENS), FORMS)
