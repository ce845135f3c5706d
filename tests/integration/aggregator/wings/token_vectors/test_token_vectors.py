"""A vector a token through the whole stack, by gRPC, Kafka and HTTP: those that the models' own libraries compute."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest

from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.embedding.v1 import embedding_pb2
from protos.token_vectors.v1 import token_vectors_pb2 as pb
from protos.token_vectors.v1 import token_vectors_pb2_grpc as pb_grpc
from tests.support.kafka_client import Sent, Topics, open_kafka_client
from tests.support.patience import patient
from tests.support.processes import StartAggregator
from tests.support.token_vector_texts import TEXTS

TIMEOUT_S = 600
SIDES = {"query": embedding_pb2.INPUT_TYPE_QUERY, "document": embedding_pb2.INPUT_TYPE_DOCUMENT}


pytestmark = [pytest.mark.vllm, pytest.mark.timeout(TIMEOUT_S)]
Matrix = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("token_vectors")
    command = [sys.executable, "-m", "tests.support.token_vector_folders", str(folder)]
    subprocess.run(command, check=True, timeout=patient(TIMEOUT_S))
    return folder


@pytest.fixture(scope="module")
def expected(folders: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(folders / "expected.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def serving(folder: Path, log: Path, task: str) -> ModelServer:
    told = {
        "MODEL__NAME": DEFAULT_MODEL_NAME,
        "MODEL__TASK": task,
        "ENGINE__DTYPE": "float32",
        "ENGINE__STEP_TOKENS": "1024",
        "PROFILE__ENABLED": "false",
    }
    return ModelServer(log, model_path=str(folder), settings=told)


@pytest.fixture(scope="module")
def colbert(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with serving(folders / "pylate", tmp_path_factory.mktemp("colbert") / "log", "auto") as server:
        yield server


@pytest.fixture(scope="module")
def sparse(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with serving(folders / "bge", tmp_path_factory.mktemp("sparse") / "log", "sparse") as server:
        yield server


def asked(side: str) -> embedding_pb2.EmbedRequest:
    inputs = [embedding_pb2.Input(text=text) for text in TEXTS]
    return embedding_pb2.EmbedRequest(
        request_id=side, inputs=inputs, input_type=SIDES[side], truncate=embedding_pb2.TRUNCATE_END
    )


def matrices(answer: pb.EmbedTokensResponse) -> list[Matrix]:
    return [np.frombuffer(each.embeddings, "<f4").reshape(-1, each.dimensions) for each in answer.inputs]


def check(found: list[Matrix], expected: dict[str, npt.NDArray[Any]], side: str) -> None:
    for number, rows in enumerate(found):
        right = expected[f"pylate/{side}/{number}/rows"]
        assert rows.shape == right.shape
        assert np.abs(rows - right).max() <= 1e-5


async def test_colberts_vectors_and_their_order_by_every_way(
    colbert: ModelServer, start_aggregator: StartAggregator, expected: dict[str, npt.NDArray[Any]]
) -> None:
    topics = Topics("token-vectors.requests", "token-vectors.replies")
    topic = {"name": topics.requests, "task": "token_vectors", "reply_topic": topics.replies}
    running = start_aggregator(colbert, topics=topics, settings={"KAFKA__TOPICS": json.dumps([topic])})
    found: dict[str, list[Matrix]] = {}
    async with grpc.aio.insecure_channel(running.process.address) as channel:
        stub = pb_grpc.TokenVectorsStub(channel)
        for side in SIDES:
            found[side] = matrices(await stub.EmbedTokens(asked(side)))
            check(found[side], expected, side)
    async with open_kafka_client(running.kafka, running.topics) as client:
        await client.exchange(*(Sent(asked(side).SerializeToString()) for side in SIDES))
    replies = [pb.EmbedTokensResponse.FromString(reply.value or b"") for reply in client.replies]
    for reply in replies:
        check(matrices(reply), expected, reply.request_id)
    async with aiohttp.ClientSession(f"http://{running.process.http_address}", raise_for_status=True) as session:
        body = {"input": TEXTS, "input_type": "query", "truncate_prompt_tokens": -1}
        async with session.post("/pooling", json=body) as response:
            answer = await response.json()
    check([np.array(each["data"], np.float32) for each in answer["data"]], expected, "query")
    for query in range(len(TEXTS)):
        ours = [maxsim(found["query"][query], rows) for rows in found["document"]]
        rows = [expected[f"pylate/document/{number}/rows"] for number in range(len(TEXTS))]
        theirs = [maxsim(expected[f"pylate/query/{query}/rows"], each) for each in rows]
        assert np.argsort(ours).tolist() == np.argsort(theirs).tolist()


def maxsim(query: Matrix, document: Matrix) -> float:
    """The sum over the query's tokens of the largest similarity to a token of the document."""
    return float((query @ document.T).max(axis=1).sum())


async def test_bge_m3s_weights_of_tokens(
    sparse: ModelServer, start_aggregator: StartAggregator, expected: dict[str, npt.NDArray[Any]]
) -> None:
    running = start_aggregator(sparse)
    async with grpc.aio.insecure_channel(running.process.address) as channel:
        answer = await pb_grpc.TokenVectorsStub(channel).EmbedTokens(asked("document"))
    async with (
        aiohttp.ClientSession(f"http://{running.process.http_address}", raise_for_status=True) as session,
        session.post("/pooling", json={"input": list(TEXTS)}) as response,
    ):
        body = await response.json()
    for number, tokens in enumerate(answer.inputs):
        indices, weights = expected[f"bge/{number}/indices"].tolist(), expected[f"bge/{number}/weights"].tolist()
        assert list(tokens.ids) == body["data"][number]["indices"] == indices
        assert list(tokens.weights) == pytest.approx(weights, abs=1e-5)
        assert body["data"][number]["values"] == pytest.approx(weights, abs=1e-5)
