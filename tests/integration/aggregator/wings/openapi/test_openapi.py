"""The OpenAPI document is valid, has every route, and says what is true: each of its examples is sent."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from aggregator.wings.openapi.documents import FILE, OPENAPI
from loadtest.stack.service import ModelServer
from modelserver.engines.synthetic import scores
from tests.integration.aggregator.test_over_http import before, chats  # noqa: F401 - a fixture
from tests.integration.aggregator.wings.openapi.document import POSTS, text
from tests.integration.aggregator.wings.ranking.http_fields import RANKS
from tests.integration.aggregator.wings.token_vectors.http_fields import TOKENS
from tests.integration.frontdoor.test_http import OpenDoor, http_door
from tests.support.listening import slow_engine

DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))
GENERATES = {"/v1/completions", "/v1/chat/completions"}
RANKED = {path for path in POSTS if any(word in path for word in ("rank", "score", "classify"))}
EMBEDS = {*POSTS} - GENERATES - RANKED - {"/pooling"}
_TOGETHER: dict[str, dict[str, Any]] = {
    "inputs": {"texts": None},
    "queries": {"text_1": None, "text_2": None, "documents": ["a text", "another"]},
    "documents": {"text_1": None, "text_2": None, "queries": "a text"},
}
"""Fields that stand for others, with what is then sent of those, where a path has them."""


def bodies(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every example of a path: its own, and it with each value of each field."""
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    example = content["example"]
    yield "", example
    name = content["schema"]["$ref"].rpartition("/")[2]
    known = DOCUMENT["components"]["schemas"][name]["properties"]
    for field, schema in known.items():
        for value in schema.get("examples", ()):
            others = {name: other for name, other in _TOGETHER.get(field, {}).items() if name in known}
            yield field, {**example, **(others if "query" not in known else {}), field: value}


def validator(path: str, method: str = "post") -> Draft202012Validator:
    """Of the JSON that a path answers with."""
    content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
    return Draft202012Validator({**content["application/json"]["schema"], "components": DOCUMENT["components"]})


async def check_all(session: aiohttp.ClientSession, path: str) -> int:
    """Send each example of a path; its response has the form that the document says."""
    right = validator(path)
    count = 0
    for field, body in bodies(path):
        async with session.post(path, json=body) as response:
            data = await response.read()
            assert response.status == 200, (path, field, body, data)
            assert response.content_type in DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
            if response.content_type == "application/json":
                right.validate(json.loads(data))
        count += 1
    return count


def test_the_document_is_that_of_the_routes_fields_and_types() -> None:
    written = FILE.read_text(encoding="utf-8")
    assert written == text(), "run python -m tests.integration.aggregator.wings.openapi.document"


def test_a_validator_takes_the_document() -> None:
    validate(DOCUMENT)
    with pytest.raises(OpenAPIValidationError):
        validate({**DOCUMENT, "paths": []})


@pytest.mark.asyncio(loop_scope="module")
async def test_the_document_has_every_route(open_door: OpenDoor) -> None:
    _, session = open_door
    async with session.get("/zzzzzzzzzzzzzzzzzzzz") as response:
        _, _, routes = (await response.json())["message"].partition("the routes are ")
    assert {*routes.split(", ")} == {*DOCUMENT["paths"], *OPENAPI} - {"/v1/models/{model}"}


@pytest.mark.parametrize("path", sorted(EMBEDS))
@pytest.mark.asyncio(loop_scope="module")
async def test_each_example_of_vectors_is_answered_as_it_says(open_door: OpenDoor, path: str) -> None:
    _, session = open_door
    assert await check_all(session, path)


@pytest.mark.parametrize("path", sorted(RANKED))
async def test_each_example_of_scores_is_answered_as_it_says(path: str) -> None:
    async with http_door(slow_engine(RANKS, compute=scores)) as (_, session):
        assert await check_all(session, path)


async def test_each_example_of_tokens_is_answered_as_it_says() -> None:
    async with http_door(slow_engine(TOKENS)) as (_, session):
        assert await check_all(session, "/pooling")


@pytest.mark.timeout(120)
async def test_each_example_of_texts_is_answered_as_it_says(chats: ModelServer, tmp_path: Path) -> None:  # noqa: F811
    with before(chats, folder=tmp_path) as aggregator:
        async with aiohttp.ClientSession(f"http://{aggregator.http_address}") as session:
            for path in sorted(GENERATES):
                assert await check_all(session, path)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_got_has_the_form_that_it_says(open_door: OpenDoor) -> None:
    _, session = open_door
    for path, methods in DOCUMENT["paths"].items():
        if "get" in methods:
            async with session.get(path.replace("{model}", "minilm")) as response:
                assert response.status == 200
                validator(path, "get").validate(await response.json())
    async with session.post("/v1/embeddings", json={"input": 5}) as response:
        right = {"$ref": "#/components/schemas/Error", "components": DOCUMENT["components"]}
        Draft202012Validator(right).validate(await response.json())


@pytest.mark.asyncio(loop_scope="module")
async def test_document_and_page_come_from_the_aggregator_alone(open_door: OpenDoor) -> None:
    _, session = open_door
    async with session.get("/openapi.json") as response:
        assert await response.json() == DOCUMENT
    async with session.get("/docs") as response:
        shown = await response.text()
        assert response.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert not re.search(r"https?:|<script|<link|src=", shown)
    for path in DOCUMENT["paths"]:
        assert html.escape(path) in shown
