"""A process with a cache answers the same question over HTTP with the same vector, and pays its server once."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from loadtest.stack.service import without_kafka
from tests.support.processes import synthetic
from tests.support.scrape import metrics


async def test_a_question_asked_twice_is_computed_once(tmp_path: Path) -> None:
    settings = {"BATCHING__CACHE_BYTES": "1000000"}
    with (
        synthetic(tmp_path / "server.log") as server,
        without_kafka(
            tmp_path / "aggregator.log", model=server.model, servers=[server.address], settings=settings
        ) as aggregator,
    ):
        async with aiohttp.ClientSession(f"http://{aggregator.http_address}", raise_for_status=True) as session:
            told: list[tuple[object, str | None]] = []
            for _ in range(2):
                body = {"input": "who wrote it?", "model": server.model}
                async with session.post("/v1/embeddings", json=body) as response:
                    answer = await response.json()
                    told.append((answer["data"], response.headers.get("x-tokenbatch-cached")))
        found = metrics(aggregator.metrics_address)
    assert told == [(told[0][0], None), (told[0][0], "1")]
    assert found.value("tokenbatch_cache_lookups_total", result="hit") == 1
