"""`loadtest produce` against a real Kafka, with a stand-in for the aggregator that answers as each test says."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from google.protobuf import json_format

from loadtest.__main__ import main
from loadtest.kit.formats import Format
from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Reply = Callable[[pb.EmbedRequest], Sequence[pb.EmbedResponse]]
"""The answers to one request: none, one or several."""


def request_of(record: Any) -> pb.EmbedRequest:
    content_type = dict(record.headers)["content-type"]
    if content_type == b"application/x-protobuf":
        return pb.EmbedRequest.FromString(record.value)
    if content_type == b"application/json":
        return json_format.Parse(record.value, pb.EmbedRequest())
    return pb.EmbedRequest(inputs=[pb.Input(text=record.value.decode())])


def embedded(request: pb.EmbedRequest) -> list[pb.EmbedResponse]:
    """The text's length and its number of words as its vector."""
    text = request.inputs[0].text
    response = pb.EmbedResponse(request_id=request.request_id)
    response.embeddings.add(
        embedding=np.array([len(text), len(text.split())], "<f4").tobytes(),
        dimensions=2,
        encoding=pb.ENCODING_FLOAT32,
        token_count=len(text.split()),
    )
    return [response]


@asynccontextmanager
async def answering(bootstrap: str, name: str, reply: Reply) -> AsyncGenerator[list[str]]:
    """Make the topics NAME-requests and NAME-replies and answer from one to the other; the options to say so."""
    requests, replies = f"{name}-requests", f"{name}-replies"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(requests, 3, 1), NewTopic(replies, 2, 1)])
    await admin.close()
    async with (
        AIOKafkaConsumer(requests, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
    ):

        async def answer() -> None:
            async for record in consumer:
                headers = dict(record.headers)
                assert headers["kafka_replyTopic"] == replies.encode()
                is_json = headers["content-type"] != b"application/x-protobuf"
                content_type = b"application/json" if is_json else b"application/x-protobuf"
                echoed = [("content-type", content_type), ("kafka_correlationId", headers["kafka_correlationId"])]
                for response in reply(request_of(record)):
                    value = json_format.MessageToJson(response).encode() if is_json else response.SerializeToString()
                    await producer.send(replies, value, key=record.key, headers=echoed)

        task = asyncio.create_task(answer())
        try:
            yield ["--bootstrap", bootstrap, "--request-topic", requests, "--reply-topic", replies]
        finally:
            task.cancel()


async def produce(*options: str) -> int:
    return await asyncio.to_thread(main, ["produce", *options])


@pytest.mark.parametrize("style", list(Format))
async def test_every_line_comes_back_with_its_vector(kafka: KafkaBroker, tmp_path: Path, style: Format) -> None:
    lines = ["who?", "wer wärs denn gewesen", "a b c"]
    (tmp_path / "lines").write_text("\n".join(lines), encoding="utf-8")
    out, summary = tmp_path / "replies.npz", tmp_path / "summary.json"
    async with answering(kafka.bootstrap, f"all-{style}", embedded) as where:
        code = await produce(
            *where, "--file", str(tmp_path / "lines"), "--count", "700", "--format", style,
            "--out", str(out), "--json", str(summary),
        )  # fmt: skip
    assert code == 0
    with np.load(out) as replies:
        assert replies["line"].tolist() == [number % 3 for number in range(700)]
        assert replies["embedding"].tolist() == [[len(lines[n]), len(lines[n].split())] for n in replies["line"]]
        assert (replies["latency_s"] > 0).all()
        assert not replies["code"].any()
    figures = json.loads(summary.read_text())
    assert (figures["sent"], figures["lost"], figures["duplicates"], figures["mismatched"]) == (700, 0, 0, 0)
    assert figures["tokens"] == 234 + 233 * 4 + 233 * 3


async def test_what_is_lost_doubled_refused_or_mixed_up_is_told(kafka: KafkaBroker, tmp_path: Path) -> None:
    def unreliable(request: pb.EmbedRequest) -> Sequence[pb.EmbedResponse]:
        match request.inputs[0].text:
            case "drop":
                return []
            case "double":
                return embedded(request) * 2
            case "refuse":
                return [pb.EmbedResponse(request_id=request.request_id, status=pb.Status(code=3))]
            case _:
                request.request_id = "another"
                return embedded(request)

    (tmp_path / "lines").write_text("drop\ndouble\nrefuse\nmix up\n")
    summary = tmp_path / "summary.json"
    async with answering(kafka.bootstrap, "unreliable", unreliable) as where:
        code = await produce(*where, "--file", str(tmp_path / "lines"), "--timeout-s", "6", "--json", str(summary))
    assert code == 1
    figures = json.loads(summary.read_text())
    assert {name: figures[name] for name in ("sent", "replies", "lost", "duplicates", "mismatched", "errors")} == {
        "sent": 4, "replies": 3, "lost": 1, "duplicates": 1, "mismatched": 1, "errors": {"INVALID_ARGUMENT": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bootstrap", "localhost:1"], "Kafka at localhost:1 failed"),
        (["--reply-topic", "absent"], "topic absent cannot be used: UnknownTopicOrPartitionError"),
        (["--format", "text", "--model", "m"], "a plain text carries neither --model, --priority nor --input-type"),
        (["--file", "/absent"], "No such file"),
    ],
)
async def test_what_cannot_be_done_is_said(
    kafka: KafkaBroker, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    async with answering(kafka.bootstrap, f"unused-{options[0][2:]}", embedded) as where:
        assert await produce(*where, *options) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
