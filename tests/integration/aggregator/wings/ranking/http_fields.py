"""The fields of bodies for scores over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aggregator.wings.ranking.scoring import PairTemplate
from modelserver.engines.synthetic import scores
from tests.support.fake_engine import FakeEngine
from tests.support.http_field import TEXTS, Field, Form
from tests.support.listening import DESCRIPTION, slow_engine

RERANK = [
    Field("documents", ["a text", "another"]),
    Field("documents", [{"text": "a text"}]),
    Field("documents", [{"image": "data:image/png;base64,AA=="}]),
    Field("model", "minilm"),
    Field("top_n", 1),
    Field(
        "return_documents", True, "absent: true, but false on `/v2/rerank` and in `data`, which Voyage's clients read"
    ),
    Field("max_tokens_per_doc", 5, "absent: as many as fit; refused by models with a template of text"),
    Field("truncate_prompt_tokens", 20, "of query and document together; absent: as many as the model takes"),
    Field("priority", 1),
    Field("request_id", "mine"),
    Field("cache_salt", "salt", "equal pairs share one computation"),
    Field("use_activation", False),
    Field("max_tokens_per_query", 5),
    Field("max_chunks_per_doc", 1),
    Field("rank_fields", ["text"]),
    Field("instruction", "be strict"),
]
VOYAGE_RERANK = [
    Field("top_k", 1),
    Field("top_k", -1),
    Field("truncation", True),
    Field("truncation", False, "a pair that is too long is refused"),
    Field("return_documents", True),
]
SCORE = [
    Field("text_1", ["a text", "another"], "as many in `text_2`"),
    Field("text_2", ["a text", "another"]),
    Field("truncate_prompt_tokens", 20),
]
SCORE_QUERIES = [
    Field("queries", "a text"),
    Field("documents", ["a text", "another"]),
]
CLASSIFY = [Field("input", ["a text", "another"]), Field("truncate_prompt_tokens", 20)]
RANKS = replace(DESCRIPTION, dimensions=1, matryoshka_dimensions=frozenset(), details=PairTemplate())
_PAIRS = {"query": "a question", "documents": TEXTS}
FORMS: list[Form] = [
    ("Jina, Cohere and vLLM", "/v1/rerank", _PAIRS, RERANK),
    ("Voyage", "/v1/rerank", _PAIRS, VOYAGE_RERANK),
    ("vLLM", "/score", {"text_1": TEXTS, "text_2": TEXTS}, SCORE),
    ("vLLM", "/score", {"queries": "a question", "documents": TEXTS}, SCORE_QUERIES),
    ("vLLM", "/classify", {"input": TEXTS}, CLASSIFY),
]
DOOR: tuple[Callable[[], FakeEngine], Sequence[Form]] = (lambda: slow_engine(RANKS, compute=scores), FORMS)
"""What answers the forms."""
