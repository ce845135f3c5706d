"""The vectors are right, through Kafka and through gRPC, and every reply says which request it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import json_format

from loadtest.kit import grpc as grpc_client
from loadtest.kit import kafka as kafka_client
from loadtest.kit.formats import Format
from loadtest.kit.tally import Tally
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from tests.integration.modelserver.texts import generated, questions, token_ids
from tests.support.kafka_client import (
    JSON,
    PROTOBUF,
    TEXT,
    Sent,
    committed,
    headers,
    make_topics,
    open_kafka_client,
    query,
)
from tests.support.processes import Running, StartAggregator, StartServer, aggregators

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

Vectors = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """300 real questions, and generated texts of many lengths and scripts that the model takes whole."""
    made = [text for text in generated() if len(token_ids([text], 10_000)[0]) <= 256]
    return [*questions(300), *made]


@pytest.fixture(scope="module")
def reference(texts: list[str], quick: ModelServer) -> Vectors:
    """What the model server itself gives, a vector that follows from the token ids alone; [texts, 384].

    `test_models.py` compares the vectors of real models, through an aggregator, with those of transformers.
    """
    found: list[Vectors] = []
    with grpc.insecure_channel(quick.address) as channel:
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        said = stub.Describe(modelserver_pb2.DescribeRequest())
        for ids in token_ids(texts):
            answer = stub.EmbedBatch(
                modelserver_pb2.EmbedBatchRequest(
                    model=said.model,
                    model_revision=said.model_revision,
                    token_ids=np.array(ids, "<i4").tobytes(),
                    lengths=np.array([len(ids)], "<i4").tobytes(),
                )
            )
            vector = np.frombuffer(answer.embeddings, "<f4")
            found.append(vector / np.linalg.norm(vector))
    return np.stack(found)


@pytest.fixture(scope="module")
def aggregator(kafka: KafkaBroker, quick: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with aggregators(kafka, tmp_path_factory.mktemp("right"), "right") as start:
        yield start(quick)


def _worst_cosine(tally: Tally, reference: Vectors) -> float:
    found = tally.embeddings()
    cosines = np.einsum("ij,ij->i", found, reference) / np.linalg.norm(found, axis=1)
    return float(cosines.min())


async def test_every_vector_through_kafka_is_that_of_the_model_server(
    aggregator: Running, texts: list[str], reference: Vectors
) -> None:
    for style in (Format.PROTOBUF, Format.JSON, Format.TEXT):
        tally = Tally(np.arange(len(texts)))
        plan = kafka_client.KafkaRun(
            aggregator.kafka, aggregator.topics.requests, aggregator.topics.replies, style, linger_s=1.0
        )
        await kafka_client.run(texts, tally, plan, lambda: None)
        summary = tally.summary()
        assert (summary.lost, summary.duplicates, summary.mismatched, summary.errors) == (0, 0, 0, {})
        assert _worst_cosine(tally, reference) >= 0.9999


async def test_every_vector_through_grpc_is_that_of_the_model_server(
    aggregator: Running, texts: list[str], reference: Vectors
) -> None:
    for per_call in (1, 32):
        tally = Tally(np.arange(len(texts)))
        plan = grpc_client.GrpcRun(aggregator.process.address, concurrency=32, per_call=per_call)
        await grpc_client.run(texts, tally, plan, lambda: None)
        summary = tally.summary()
        assert (summary.lost, summary.duplicates, summary.errors) == (0, 0, {})
        assert _worst_cosine(tally, reference) >= 0.9999


async def test_a_reply_carries_key_routing_headers_and_format_of_its_request(
    start_aggregator: StartAggregator, quick: ModelServer
) -> None:
    running = start_aggregator(quick, settings={"KAFKA__ALLOWED_REPLY_TOPICS": '["*.elsewhere"]'})
    elsewhere = f"{running.topics.requests}.elsewhere"
    await make_topics(running.kafka, elsewhere)
    route = [
        ("kafka_replyTopic", elsewhere.encode()),
        ("kafka_replyPartition", b"\0\0\0\1"),
        ("kafka_correlationId", b"\xff\x00opaque"),
        ("correlation_id", b"c-7"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", b"vendor=1"),
    ]
    message = json_format.MessageToJson(pb.EmbedRequest(request_id="j", inputs=[pb.Input(text="hello")]))
    records = [
        Sent(query("hello", "p").value, [PROTOBUF, *route], b"key-1"),
        Sent(message.encode(), [JSON, *route], b"key-2"),
        Sent(b"hello", [TEXT, ("reply_to", elsewhere.encode()), ("correlation_id", b"c-8")], b"key-3"),
    ]
    async with open_kafka_client(running.kafka, running.topics, elsewhere) as desk:
        await desk.exchange(*records)
    replies = {reply.key: reply for reply in desk.replies}
    assert {reply.topic for reply in desk.replies} == {elsewhere}
    for key, content_type in ((b"key-1", PROTOBUF), (b"key-2", JSON)):
        assert replies[key].partition == 1
        assert headers(replies[key]) == dict([content_type, *route])
    assert headers(replies[b"key-3"])["correlation_id"] == b"c-8"
    assert pb.EmbedResponse.FromString(replies[b"key-1"].value or b"").request_id == "p"
    for key in (b"key-2", b"key-3"):
        answer = json.loads(replies[key].value or b"")
        assert len(answer["embeddings"]) == 1
        assert answer["timings"]["inference"].endswith("s")


async def test_an_offset_is_committed_only_after_its_reply(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    slow = start_server(SYNTHETIC__FIXED_S="0.1")
    running = start_aggregator(
        slow,
        settings={
            "BATCHING__TOKEN_BUDGET": "100",
            "CONSTANTS": '{"aggregator.settings.aggregator:ClientSettings.commit_interval_s": 0.02}',
        },
    )
    seen: list[tuple[int, int]] = []
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.produce(*(query(text, f"q{number}") for number, text in enumerate(questions(200))))
        while len(desk.replies) < 200:
            offsets = await committed(running.kafka, running.group)
            seen.append((sum(max(0, offset) for offset in offsets.values()), await desk.written_replies()))
            await desk.linger(0.02)
        assert all(commit <= answered for commit, answered in seen)
        await desk.until_committed(running.group)
        assert await desk.written_replies() == 200
