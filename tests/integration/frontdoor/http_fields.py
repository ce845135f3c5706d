"""Try every field of the bodies over HTTP, and write what becomes of each: docs/http_fields.md."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggregator.model_server import PairTemplate
from modelserver.engines.synthetic import scores
from tests.integration.frontdoor.test_http import http_door
from tests.support.listening import DESCRIPTION, slow_engine

PAGE = Path(__file__).parents[3] / "docs" / "http_fields.md"
_HEAD = """# Fields over HTTP

Written by `python -m tests.integration.frontdoor.http_fields`, which sends each value; a test checks
that the page is up to date. *Taken*: it means what it means there. *Ignored*: the answer is the same, and
`x-tokenbatch-ignored` names the field. *Refused*: status 400, and the error names the field.
"""
_TEXTS = ["who wrote hamlet", "rain in spain"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field with a value as its API's clients send it, and what is to be known of it here."""

    name: str
    value: Any
    note: str = ""


OPENAI = [
    Field("input", "a text"),
    Field("input", ["a text", "another"]),
    Field("input", [101, 7592, 102], "ids may be another model's; taken with `tokenizer`"),
    Field("model", "minilm"),
    Field("encoding_format", "float"),
    Field("encoding_format", "base64"),
    Field("dimensions", 32, "of a Matryoshka model"),
    Field("user", "someone", "the tenant, where callers do not authenticate"),
    Field("safety_identifier", "someone"),
    Field("metadata", {"a": "b"}),
]
VLLM = [
    Field("truncate_prompt_tokens", -1, "truncates to what the model takes"),
    Field("truncate_prompt_tokens", 5),
    Field("truncate_prompt_tokens", 0, "nothing would be left"),
    Field("truncation_side", "left", "where `truncate_prompt_tokens` or `truncation` truncates"),
    Field("add_special_tokens", True),
    Field("add_special_tokens", False, "send token ids without them"),
    Field("request_id", "mine"),
    Field("priority", -1),
    Field("encoding_format", "bytes"),
    Field("encoding_format", "bytes_only"),
    Field("embed_dtype", "float32"),
    Field("embed_dtype", "float16", "of `base64` and bytes"),
    Field("embed_dtype", "bfloat16", "NumPy has no such type"),
    Field("endianness", "big", "of `base64` and bytes; `native` is little"),
    Field("use_activation", False, "the same as `normalize`"),
    Field("padding", "do_not_pad"),
    Field("padding", "max_length", "no text is padded"),
    Field("cache_salt", "salt", "equal texts share one computation, no cache"),
    Field("mm_processor_kwargs", {"a": 1}, "of images"),
    Field("media_io_kwargs", {"image": {}}, "of images"),
    Field("messages", [{"role": "user", "content": "a"}], "send the text as `input`"),
]
VOYAGE = [
    Field("input_type", "query", "the model's own prompt, if it has one"),
    Field("input_type", "document"),
    Field("truncation", True, "absent: an input that is too long is refused, as at OpenAI"),
    Field("truncation", False),
    Field("output_dimension", 32, "of a Matryoshka model"),
    *(Field("output_dtype", dtype) for dtype in ("float", "int8", "uint8", "binary", "ubinary")),
]
JINA = [
    Field("task", "retrieval.query", "`input_type` says it"),
    Field("late_chunking", True, "the inputs are the chunks of one document"),
    Field("embedding_type", "float", "`output_dtype` says it"),
]
OWN = [
    Field("normalize", False),
    Field("priority", "background"),
    Field("tokenizer", "f", "the fingerprint that `GET /v1/models` shows: token ids are its own"),
    Field("wings", 2, "any field that is not known"),
]
DOCUMENTS = [
    Field("inputs", [["a text", "another"], ["a third"]], "the chunks of each document"),
    Field("inputs", ["a text"], "Voyage's client sends `[[...]]`"),
    Field("model", "minilm"),
    Field("input_type", "query", "a text by itself is then embedded whole, as a query"),
    Field("input_type", "document", "the model's own prompt is seen, and belongs to no chunk"),
    *(Field("output_dtype", dtype) for dtype in ("float", "int8", "uint8", "binary", "ubinary")),
    Field("output_dimension", 32, "of a Matryoshka model"),
    Field("encoding_format", "base64"),
    Field("enable_auto_chunking", True, "chunks are the caller's: pass the client a `chunk_fn`"),
    Field("chunk_size", 512),
    Field("priority", "background"),
]
COHERE = [
    Field("texts", ["a text"]),
    Field("inputs", [{"content": [{"type": "text", "text": "a text"}]}], "one text each, and then no `texts`"),
    Field("images", ["data:image/png;base64,AA=="]),
    Field("model", "minilm"),
    Field("input_type", "search_query", "the model's own prompt, if it has one"),
    Field("input_type", "search_document"),
    Field("input_type", "classification", "no prompt"),
    Field("input_type", "clustering", "no prompt"),
    Field("input_type", "image"),
    *(Field("embedding_types", [name]) for name in ("float", "int8", "uint8", "binary", "ubinary", "base64")),
    Field("output_dimension", 32, "of a Matryoshka model"),
    Field("truncate", "NONE"),
    Field("truncate", "START"),
    Field("truncate", "END", "the default"),
    Field("max_tokens", 5),
    Field("priority", 1),
]
COHERE_1 = [
    Field("texts", ["a text"]),
    Field("model", "minilm"),
    Field("input_type", "search_query"),
    Field("embedding_types", ["float", "int8"], "absent: a list of floats"),
    Field("truncate", "NONE"),
]
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
    Field("cache_salt", "salt", "equal pairs share one computation, no cache"),
    Field("use_activation", False, "the model's own activation is always applied"),
]
VOYAGE_RERANK = [
    Field("top_k", 1),
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
RANKS = replace(DESCRIPTION, dimensions=1, matryoshka_dimensions=frozenset(), pair_template=PairTemplate())
FORMS: list[tuple[str, str, dict[str, Any], list[Field]]] = [
    ("OpenAI", "/v1/embeddings", {"input": _TEXTS}, OPENAI),
    ("vLLM", "/v1/embeddings", {"input": _TEXTS}, VLLM),
    ("Voyage", "/v1/embeddings", {"input": _TEXTS}, VOYAGE),
    ("Jina", "/v1/embeddings", {"input": _TEXTS}, JINA),
    ("This server", "/v1/embeddings", {"input": _TEXTS}, OWN),
    ("Voyage", "/v1/contextualizedembeddings", {"inputs": [_TEXTS]}, DOCUMENTS),
    ("Cohere", "/v2/embed", {"texts": _TEXTS}, COHERE),
    ("Cohere, version 1", "/v1/embed", {"texts": _TEXTS}, COHERE_1),
]
_PAIRS = {"query": "a question", "documents": _TEXTS}
SCORE_FORMS: list[tuple[str, str, dict[str, Any], list[Field]]] = [
    ("Jina, Cohere and vLLM", "/v1/rerank", _PAIRS, RERANK),
    ("Voyage", "/v1/rerank", _PAIRS, VOYAGE_RERANK),
    ("vLLM", "/score", {"text_1": _TEXTS, "text_2": _TEXTS}, SCORE),
    ("vLLM", "/score", {"queries": "a question", "documents": _TEXTS}, SCORE_QUERIES),
    ("vLLM", "/classify", {"input": _TEXTS}, CLASSIFY),
]


async def tried(session: Any, path: str, body: dict[str, Any], field: Field) -> str:
    """What becomes of a field; it is asserted that a refusal names it."""
    body = {**body, field.name: field.value}
    if field.name == "inputs":
        body.pop("texts", None)
    async with session.post(path, json=body) as response:
        if response.status == 200:
            return "ignored" if field.name in response.headers.get("x-tokenbatch-ignored", "").split(", ") else "taken"
        error = (await response.json())["error"]
        assert response.status == 400, error
        assert str(error["param"]).startswith(field.name), error
        return "refused"


async def page() -> str:
    lines = [_HEAD]
    for engine, forms in ((slow_engine(), FORMS), (slow_engine(RANKS, compute=scores), SCORE_FORMS)):
        async with http_door(engine) as (_, session):
            for name, path, body, fields in forms:
                lines += [f"## {name}, `POST {path}`\n", "| field | value | | |", "|---|---|---|---|"]
                for field in fields:
                    found = await tried(session, path, body, field)
                    lines.append(f"| `{field.name}` | `{json.dumps(field.value)}` | {found} | {field.note} |")
                lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
