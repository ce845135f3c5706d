"""Published weights, served by Kafka, gRPC and HTTP, give the vectors of onnxruntime and of sentence-transformers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import numpy as np
import pytest

from loadtest.stack.errors import StackError
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import Aggregator, ModelServer
from loadtest.texts.published import MODELS, published
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.integration.modelserver.run_published import Vectors, mean_reciprocal_rank, questions
from tests.support.kafka_client import Topics, open_kafka_client, query, read

pytestmark = [pytest.mark.vllm, pytest.mark.kafka, pytest.mark.privileged, pytest.mark.timeout(900)]

LEAST_COSINE = 0.99999
AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Served:
    """A published model behind an aggregator, and what others compute with it."""

    aggregator: Aggregator
    kafka: str
    topics: Topics
    expected: Mapping[str, Vectors]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name, scratch = request.param, tmp_path_factory.mktemp("published")
    try:
        folder = published(name)
    except StackError as error:
        pytest.skip(str(error))
    told = {"ENGINE__DTYPE": "float32", "PROFILE__ENABLED": "false"}
    topics = Topics(f"{name}.requests", f"{name}.replies")
    with ModelServer(scratch / "modelserver.log", model_path=str(folder), settings=told) as server:
        settings = {
            "KAFKA__TOPICS": f'[{{"name": "{topics.requests}"}}]',
            "KAFKA__REPLY_TOPIC": topics.replies,
            "KAFKA__GROUP_ID": topics.requests,
            "KAFKA__PARTITIONS": "2",
        }
        with Aggregator(
            scratch / "aggregator.log", kafka=kafka, model=name, servers=[server.address], settings=settings
        ) as aggregator:
            yield Served(aggregator, kafka, topics, computed(name, folder, scratch))


def computed(name: str, folder: Path, scratch: Path) -> Mapping[str, Vectors]:
    """By a program of its own."""
    module = "tests.integration.modelserver.run_published"
    command = [sys.executable, "-m", module, name, str(folder), str(scratch / "expected.npz")]
    env = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    with np.load(scratch / "expected.npz") as found:
        return dict(found)


async def by_grpc(
    served: Served, texts: Sequence[str], input_type: pb.InputType = pb.INPUT_TYPE_UNSPECIFIED
) -> Vectors:
    rows: list[bytes] = []
    async with grpc.aio.insecure_channel(served.aggregator.address) as channel:
        stub = pb_grpc.EmbeddingsStub(channel)
        for at in range(0, len(texts), AT_ONCE):
            inputs = [pb.Input(text=text) for text in texts[at : at + AT_ONCE]]
            answer = await stub.Embed(pb.EmbedRequest(inputs=inputs, input_type=input_type), timeout=300)
            rows += [each.embedding for each in answer.embeddings]
    return unpacked(rows)


async def by_http(served: Served, texts: Sequence[str]) -> Vectors:
    rows: list[bytes] = []
    async with aiohttp.ClientSession(f"http://{served.aggregator.http_address}", raise_for_status=True) as session:
        for at in range(0, len(texts), AT_ONCE):
            body: dict[str, Any] = {"input": texts[at : at + AT_ONCE], "encoding_format": "base64"}
            async with session.post("/v1/embeddings", json=body) as response:
                rows += [b64decode(each["embedding"]) for each in (await response.json())["data"]]
    return unpacked(rows)


async def by_kafka(served: Served, texts: Sequence[str]) -> Vectors:
    async with open_kafka_client(served.kafka, served.topics) as desk:
        await asyncio.wait_for(desk.exchange(*(query(text, str(at)) for at, text in enumerate(texts))), 300)
        replies = {reply.request_id: reply.embeddings[0].embedding for reply in map(read, desk.replies)}
    return unpacked([replies[str(at)] for at in range(len(texts))])


def unpacked(rows: Sequence[bytes]) -> Vectors:
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


def cosines(found: Vectors, expected: Vectors) -> Vectors:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray((found * expected).sum(1) / lengths)


@pytest.mark.parametrize("way", [by_grpc, by_http, by_kafka])
async def test_each_way_gives_the_vectors_of_onnxruntime(served: Served, way: Any) -> None:
    found = await way(served, questions())
    assert cosines(found, served.expected["by_onnx"]).min() >= LEAST_COSINE
    assert cosines(found, served.expected["questions"]).min() >= LEAST_COSINE


async def test_documents_are_found_as_by_sentence_transformers(served: Served) -> None:
    expected: Mapping[str, Any] = served.expected
    asked = await by_grpc(served, expected["query_texts"].tolist(), pb.INPUT_TYPE_QUERY)
    kept = await by_grpc(served, expected["document_texts"].tolist(), pb.INPUT_TYPE_DOCUMENT)
    assert cosines(asked, expected["queries"]).min() >= LEAST_COSINE
    assert cosines(kept, expected["documents"]).min() >= LEAST_COSINE
    right = mean_reciprocal_rank(expected["queries"], expected["documents"])
    assert mean_reciprocal_rank(asked, kept) == pytest.approx(right, abs=0.002)
