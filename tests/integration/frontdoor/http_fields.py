"""Try every field of the bodies over HTTP, and write what becomes of each: docs/http_fields.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.integration.aggregator.wings.generation import http_fields as generation
from tests.integration.aggregator.wings.ranking import http_fields as ranking
from tests.integration.aggregator.wings.token_vectors import http_fields as token_vectors
from tests.integration.frontdoor.test_http import http_door
from tests.support.fake_engine import FakeEngine
from tests.support.http_field import TEXTS, Field, Form, refusal, section
from tests.support.listening import slow_engine

PAGE = Path(__file__).parents[3] / "docs" / "http_fields.md"
_HEAD = """# Fields over HTTP

Written by `python -m tests.integration.frontdoor.http_fields`, which sends each value; a test checks
that the page is up to date. *Taken*: it means what it means there. *Ignored*: the answer is the same, and
`x-tokenbatch-ignored` names the field. *Refused*: status 400, with this message, which names the field and a remedy.
"""


OPENAI = [
    Field("input", "a text"),
    Field("input", ["a text", "another"]),
    Field("input", [101, 7592, 102]),
    Field("model", "minilm"),
    Field("encoding_format", "float"),
    Field("encoding_format", "base64"),
    Field("dimensions", 32, "of a Matryoshka model"),
    Field("dimensions", "32"),
    Field("dimensions", 33),
    Field("user", "someone", "the tenant, where callers do not authenticate"),
    Field("safety_identifier", "someone"),
    Field("metadata", {"a": "b"}),
]
VLLM = [
    Field("truncate_prompt_tokens", -1, "truncates to what the model takes"),
    Field("truncate_prompt_tokens", 5),
    Field("truncate_prompt_tokens", 0),
    Field("truncation_side", "left", "where `truncate_prompt_tokens` or `truncation` truncates"),
    Field("add_special_tokens", True),
    Field("add_special_tokens", False),
    Field("request_id", "mine"),
    Field("priority", -1),
    Field("encoding_format", "bytes", "at most 512 vectors, as a header describes them (some proxies pass 8 kB: 60)"),
    Field("encoding_format", "bytes_only"),
    Field("embed_dtype", "float32"),
    Field("embed_dtype", "float16", "of `base64` and bytes"),
    Field("embed_dtype", "bfloat16"),
    Field("endianness", "big", "of `base64` and bytes; `native` is little"),
    Field("use_activation", False, "the same as `normalize`"),
    Field("padding", "do_not_pad"),
    Field("padding", "max_length"),
    Field("cache_salt", "salt", "equal texts share one computation"),
    Field("mm_processor_kwargs", {"a": 1}, "of images"),
    Field("media_io_kwargs", {"image": {}}, "of images"),
    Field("messages", [{"role": "user", "content": "a"}]),
]
VOYAGE = [
    Field("input_type", "query", "the model's own prompt, if it has one"),
    Field("input_type", "document"),
    Field("truncation", True, "absent: an input that is too long is refused, as at OpenAI"),
    Field("truncation", False),
    Field("output_dimension", 32, "of a Matryoshka model"),
    Field("output_dimension", 33),
    Field("input_type", "passage"),
    Field("output_dtype", "int16"),
    *(Field("output_dtype", dtype) for dtype in ("float", "int8", "uint8", "binary", "ubinary")),
]
JINA = [
    Field("task", "retrieval.query"),
    Field("late_chunking", True, "the inputs are the chunks of one document"),
    Field("embedding_type", "float"),
    Field("normalized", True),
    Field("truncate", True),
    Field("return_multivector", True),
]
OWN = [
    Field("normalize", False),
    Field("priority", "background"),
    Field("tokenizer", "f", "the fingerprint that `GET /v1/models` shows: token ids are its own"),
    Field("inputs", "a text"),
    Field("wings", 2),
]
DOCUMENTS = [
    Field("inputs", [["a text", "another"], ["a third"]], "the chunks of each document"),
    Field("inputs", ["a text"]),
    Field("model", "minilm"),
    Field("input_type", "query", "a text by itself is then embedded whole, as a query"),
    Field("input_type", "document", "the model's own prompt is seen, and belongs to no chunk"),
    *(Field("output_dtype", dtype) for dtype in ("float", "int8", "uint8", "binary", "ubinary")),
    Field("output_dimension", 32, "of a Matryoshka model"),
    Field("encoding_format", "base64"),
    Field("enable_auto_chunking", True),
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
FORMS: list[Form] = [
    ("OpenAI", "/v1/embeddings", {"input": TEXTS}, OPENAI),
    ("vLLM", "/v1/embeddings", {"input": TEXTS}, VLLM),
    ("Voyage", "/v1/embeddings", {"input": TEXTS}, VOYAGE),
    ("Jina", "/v1/embeddings", {"input": TEXTS}, JINA),
    ("This server", "/v1/embeddings", {"input": TEXTS}, OWN),
    ("Voyage", "/v1/contextualizedembeddings", {"inputs": [TEXTS]}, DOCUMENTS),
    ("Cohere", "/v2/embed", {"texts": TEXTS}, COHERE),
    ("Cohere, version 1", "/v1/embed", {"texts": TEXTS}, COHERE_1),
]
DOORS: list[tuple[Callable[[], FakeEngine], Sequence[Form]]] = [
    (slow_engine, FORMS),
    ranking.DOOR,
    token_vectors.DOOR,
]


WITHOUT_SERVER: list[Callable[[], Iterator[str]]] = [
    generation.sections,
]


async def tried(session: Any, path: str, body: dict[str, Any], field: Field) -> tuple[str, str]:
    """What becomes of a field, and what is to be known of that."""
    body = {**body, field.name: field.value}
    if field.name == "inputs":
        body.pop("texts", None)
    async with session.post(path, json=body) as response:
        if response.status == 200:
            ignored = response.headers.get("x-tokenbatch-ignored", "").split(", ")
            return "ignored" if field.name in ignored else "taken", field.note
        error = (await response.json())["error"]
        assert response.status == 400, error
        return "refused", refusal(error, field)


async def page() -> str:
    lines = [_HEAD]
    for open_engine, forms in DOORS:
        async with http_door(open_engine()) as (_, session):
            for name, path, body, fields in forms:
                found = [await tried(session, path, body, field) for field in fields]
                lines += section(name, path, fields, found)
    for sections in WITHOUT_SERVER:
        lines += sections()
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
