"""Redis alone, without Kafka: an aggregator and model servers as processes, and what becomes of every kind of entry."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.errors import Code
from loadtest.stack.redis import RedisServer
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1 import generation_pb2 as texts
from protos.ranking.v1 import ranking_pb2 as ranking
from tests.support.processes import synthetic
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TOO_LARGE = 4 * 1024 * 1024 + 1
WRITER = {"MODEL__TASK": "generate", "MODEL__NAME": "writer", "MODEL__MAX_INPUT_TOKENS": "512"}
RANKER = {"MODEL__TASK": "rank", "MODEL__NAME": "ranker"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ModelServer]]:
    """One that embeds, one that generates and one that ranks, none with a model."""
    made = [
        synthetic(tmp_path / "embeds.log"),
        synthetic(tmp_path / "generates.log", **WRITER),
        synthetic(tmp_path / "ranks.log", **RANKER),
    ]
    for each in made:
        each.launch()
    yield made
    for each in made:
        each.kill()


def aggregator(folder: Path, redis: RedisServer, servers: list[ModelServer]) -> Aggregator:
    embeds, generates, ranks = servers
    models = [
        {"name": embeds.model, "servers": [embeds.address]},
        {"name": "writer", "servers": [generates.address]},
        {"name": "ranker", "servers": [ranks.address]},
    ]
    streams = [
        {"name": "embed.requests.v1"},
        {"name": "generate.requests.v1", "task": "generate", "model": "writer"},
        {"name": "rank.requests.v1", "task": "rank", "model": "ranker"},
    ]
    settings = {
        "MODELS": json.dumps(models),
        "REDIS__ENABLED": "true",
        "REDIS__SERVERS": redis.address,
        "REDIS__STREAMS": json.dumps(streams),
        "BATCHING__COALESCE": "true",
    }
    return without_kafka(folder / "aggregator.log", model=embeds.model, servers=[embeds.address], settings=settings)


def question(request_id: str, text: str = "rain", **fields: Any) -> bytes:
    return pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)], **fields).SerializeToString()


async def test_every_kind_of_entry_has_its_outcome_and_is_counted(
    own: RedisServer, servers: list[ModelServer], tmp_path: Path
) -> None:
    prompt = texts.GenerateRequest(request_id="text", prompt="rain", sampling=texts.Sampling(max_tokens=5))
    to_rank = ranking.RankRequest(request_id="order", query="rain", documents=["snow", "", "rain in spain"], top_n=1)
    entries: list[dict[str, Any]] = [
        {"value": question("good", "snow")},
        {"value": question("unknown", model="nobody")},
        {"value": question("late"), "expire": time.time() - 5},
        {"value": b"x" * TOO_LARGE, "content-type": "text/plain", "request_id": "large"},
        {"value": question("twice")},
        {"value": question("twice")},
    ]
    with own.client() as client:
        with client.pipeline() as together:  # so that one claim takes all of them
            for entry in entries:
                together.xadd("embed.requests.v1", entry)
            together.xadd("generate.requests.v1", {"value": prompt.SerializeToString()})
            together.xadd("rank.requests.v1", {"value": to_rank.SerializeToString()})
            together.execute()
        with aggregator(tmp_path, own, servers) as running:
            tasks = {"embed": 6, "generate": 1, "rank": 1}
            await until(lambda: all(client.xlen(f"{task}.replies.v1") == tasks[task] for task in tasks), 60.0)
            await until(lambda: not any(client.xlen(f"{task}.requests.v1") for task in tasks))
            found = [fields[b"value"] for _, fields in client.xrange("embed.replies.v1")]
            replies = [pb.EmbedResponse.FromString(value) for value in found if not value.startswith(b"{")]
            assert sorted((each.request_id, Code(each.status.code)) for each in replies) == [
                ("good", Code.OK),
                ("late", Code.DEADLINE_EXCEEDED),
                ("twice", Code.OK),
                ("twice", Code.OK),
                ("unknown", Code.NOT_FOUND),
            ]
            [large] = [json.loads(value) for value in found if value.startswith(b"{")]
            assert (large["requestId"], large["status"]["code"]) == ("large", Code.INVALID_ARGUMENT)
            one, other = (each for each in replies if each.request_id == "twice")
            assert one.embeddings[0].embedding == other.embeddings[0].embedding
            assert one.reply_id != other.reply_id
            [(_, fields)] = client.xrange("generate.replies.v1")
            assert texts.GenerateResponse.FromString(fields[b"value"]).usage.completion_tokens == 5
            [(_, fields)] = client.xrange("rank.replies.v1")
            order = ranking.RankResponse.FromString(fields[b"value"])
            assert (order.request_id, Code(order.status.code)) == ("order", Code.INVALID_ARGUMENT)
            assert [Code(each.status.code) for each in order.results] == [Code.OK, Code.INVALID_ARGUMENT]
            assert order.results[0].index in {0, 2}
            counted = metrics(running.metrics_address)
            for code, count in (("OK", 4), ("NOT_FOUND", 1), ("DEADLINE_EXCEEDED", 1), ("INVALID_ARGUMENT", 2)):
                assert counted.value("tokenbatch_requests_total", source="redis", code=code) == count
            assert counted.value("tokenbatch_expired_total") == 1
            assert counted.value("tokenbatch_coalesced_total") == 1
            assert counted.value("tokenbatch_dead_letters_total", code="INVALID_ARGUMENT") == 1
