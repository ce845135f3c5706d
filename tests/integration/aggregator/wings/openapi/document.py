"""Write the OpenAPI document: `python -m tests.integration.aggregator.wings.openapi.document`.

Its fields are those of the types that bodies are decoded into; what is said of a field, and its examples, are the rows
of docs/http_fields.md that say `taken`, each of which was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from aggregator.sources.http.embeddings import EmbeddingsRequest
from aggregator.wings.generation.forms import ChatRequest, CompletionRequest
from aggregator.wings.http_forms.cohere import EmbedBody
from aggregator.wings.http_forms.voyage import DocumentsBody
from aggregator.wings.openapi.documents import FILE
from aggregator.wings.ranking.http import ClassifyBody, RerankBody, ScoreBody
from aggregator.wings.token_vectors.http import PoolingBody
from aggregator.wings.tokenize.bodies import Detokenize, Tokenize
from tests.integration.aggregator.wings.openapi import answers

FIELDS = Path(__file__).parents[5] / "docs" / "http_fields.md"
TEXTS = ["who wrote hamlet", "rain in spain"]
PAIRS = {"query": "who wrote hamlet", "documents": TEXTS}
REF = "#/components/schemas/{name}"
_SECTION = re.compile(r"^## .*`POST (\S+)`$")
_ROW = re.compile(r"^\| `(\w+)` \| `(.*)` \| (taken|ignored) \| (.*) \|$")
_DESCRIPTION = (
    "Embeddings, rankings, scores and texts, as the clients of OpenAI, vLLM, Voyage, Cohere and Jina ask for them."
    " docs/http_fields.md lists what becomes of each field, docs/errors.md the errors."
    " Not described here: /v1/files and /v1/batches, which are OpenAI's own and there where batches.store is set."
)


class Operation(NamedTuple):
    """A POST: its body's type, its response's, what it does, and a body that a test sends."""

    body: type
    answer: type
    says: str
    example: dict[str, Any]


_AT_VOYAGE, _DOCUMENTS = "Embed documents in chunks, as at Voyage.", {"inputs": [TEXTS]}
POSTS: dict[str, Operation] = {
    "/v1/embeddings": Operation(EmbeddingsRequest, answers.Embeddings, "Embed texts, as at OpenAI.", {"input": TEXTS}),
    "/v1/contextualizedembeddings": Operation(DocumentsBody, answers.ContextualizedEmbeddings, _AT_VOYAGE, _DOCUMENTS),
    "/v1/embed": Operation(EmbedBody, answers.CohereEmbeddings, "Embed texts, as at Cohere, v1.", {"texts": TEXTS}),
    "/v2/embed": Operation(EmbedBody, answers.CohereEmbeddings, "Embed texts, as at Cohere.", {"texts": TEXTS}),
    "/rerank": Operation(RerankBody, answers.Ranking, "Rank documents, as at Jina.", PAIRS),
    "/v1/rerank": Operation(RerankBody, answers.Ranking, "Rank documents, as at Jina and Voyage.", PAIRS),
    "/v2/rerank": Operation(RerankBody, answers.Ranking, "Rank documents, as at Cohere.", PAIRS),
    "/score": Operation(ScoreBody, answers.Scores, "Score pairs, as at vLLM.", {"text_1": TEXTS, "text_2": TEXTS}),
    "/v1/score": Operation(ScoreBody, answers.Scores, "Score pairs, as at vLLM.", {"text_1": TEXTS, "text_2": TEXTS}),
    "/classify": Operation(ClassifyBody, answers.Classes, "Classify texts, as at vLLM.", {"input": TEXTS}),
    "/pooling": Operation(
        PoolingBody, answers.TokenRows, "A vector of each token, or its weight, as at vLLM.", {"input": TEXTS}
    ),
    "/v1/completions": Operation(
        CompletionRequest, answers.Generation, "Continue a text, as at OpenAI.", {"prompt": "rain in spain"}
    ),
    "/v1/chat/completions": Operation(
        ChatRequest,
        answers.Generation,
        "Answer a chat, as at OpenAI.",
        {"messages": [{"role": "user", "content": "who wrote hamlet"}], "max_tokens": 16},
    ),
    "/tokenize": Operation(Tokenize, answers.Tokens, "The tokens of a text.", {"prompt": "rain in spain"}),
    "/detokenize": Operation(Detokenize, answers.Prompt, "The text of tokens.", {"tokens": [4542, 1999, 3577]}),
}
GETS: dict[str, tuple[type, str]] = {
    "/v1/models": (answers.ModelList, "The models that have a server."),
    "/v1/models/{model}": (answers.Model, "One of them."),
    "/health": (answers.Nothing, "200 while requests are taken; needs no right."),
}
_HEADERS = {
    "x-request-id": ("an id of the caller, which comes back", {"type": "string", "maxLength": 1024}),
    "x-request-timeout": ("seconds that the caller waits", {"type": "number", "exclusiveMinimum": 0}),
    "traceparent": ("the trace that the call is part of, by W3C", {"type": "string"}),
}


def rows(page: str) -> Iterator[tuple[str, str, Any, str]]:
    """Path, field, value and note of what is taken or ignored."""
    path = ""
    for line in page.splitlines():
        if section := _SECTION.match(line):
            path = section[1]
        elif row := _ROW.match(line):
            note = row[4].strip() if row[3] == "taken" else f"ignored: {row[4].strip()}".removesuffix(": ")
            yield path, row[1], json.loads(row[2]), note


def document() -> dict[str, Any]:
    """The whole document."""
    types = [kind for each in POSTS.values() for kind in (each.body, each.answer)]
    types += [answers.Error, *(answer for answer, _ in GETS.values())]
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    _explain(schemas)
    paths: dict[str, Any] = {path: {"post": _post(path, each)} for path, each in POSTS.items()}
    paths |= {path: {"get": _get(path, *each)} for path, each in GETS.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tokenbatch over HTTP",
            "version": "1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": {
                name: {"name": name, "in": "header", "description": says, "schema": schema}
                for name, (says, schema) in _HEADERS.items()
            },
            "responses": {
                "Error": {
                    "description": "An error; x-should-retry and retry-after say whether and when to try again.",
                    "content": _json(answers.Error),
                }
            },
            "schemas": schemas,
        },
    }


def _explain(schemas: Mapping[str, Any]) -> None:
    """Notes and examples of fields. A default that none has to send is left out: it is `null`."""
    for path, field, value, note in rows(FIELDS.read_text(encoding="utf-8")):
        of_field = schemas[POSTS[path].body.__name__]["properties"].get(field)
        if of_field is None:  # such as `n`, which may say 1
            continue
        examples = of_field.setdefault("examples", [])
        if value not in examples:
            examples.append(value)
        if note not in of_field.get("description", ""):
            of_field["description"] = "; ".join(filter(None, (of_field.get("description", ""), note)))
    for schema in schemas.values():
        for of_field in schema.get("properties", {}).values():
            if of_field.get("default", 0) is None:
                del of_field["default"]


def _post(path: str, operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = _json(operation.answer)
    if operation.answer is answers.Generation:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    if operation.answer is answers.Embeddings:
        answer["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    body = {"application/json": {**_schema(operation.body), "example": operation.example}}
    return {
        **_common(path, "post", operation.says),
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS],
        "requestBody": {"required": True, "content": body},
        "responses": _responses(answer),
    }


def _get(path: str, answer: type, says: str) -> dict[str, Any]:
    operation = {**_common(path, "get", says), "responses": _responses(_json(answer))}
    if path == "/health":
        operation["security"] = [{}]
    if named := re.findall(r"{(\w+)}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named
        ]
    return operation


def _common(path: str, method: str, says: str) -> dict[str, Any]:
    return {"operationId": f"{method}_{re.sub(r'[^a-z0-9]+', '_', path).strip('_')}", "summary": says}


def _responses(answer: dict[str, Any]) -> dict[str, Any]:
    error = {"$ref": "#/components/responses/Error"}
    return {"200": {"description": "Done.", "content": answer}, "4XX": error, "5XX": error}


def _schema(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": REF.format(name=kind.__name__)}}


def _json(kind: type) -> dict[str, Any]:
    return {"application/json": _schema(kind)}


def text() -> str:
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
