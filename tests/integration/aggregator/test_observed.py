"""What an operator sees: health, and logs that never tell what was asked."""

from __future__ import annotations

import asyncio
import json
import socket

import grpc.aio
import pytest

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.kafka_client import JSON, TEXT, Sent, open_kafka_client, query
from tests.support.processes import NewServer, StartAggregator, StartServer
from tests.support.scrape import page
from tests.support.until import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = "zyzzyva"


def call(text: str) -> pb.EmbedRequest:
    return pb.EmbedRequest(request_id="call", inputs=[pb.Input(text=text)])


async def test_health_says_what_is_missing(start_aggregator: StartAggregator, new_server: NewServer) -> None:
    server = new_server()
    running = start_aggregator(server, ready=False, settings={"LIFECYCLE__GRACE_S": "11"})
    process = running.process

    def shows(status: int, *lines: str) -> None:
        wait_until(lambda: page(process.metrics_address, "/readyz") == (status, "".join(f"{line}\n" for line in lines)))
        assert page(process.metrics_address, "/livez") == (200, "[+]loop ok\nok\n")

    wait_until(lambda: is_open(process.metrics_address))
    shows(503, "[-]models no model server is available", "[+]kafka ok", "[+]loop ok", "failed")
    server.start()
    shows(200, "[+]models ok", "[+]kafka ok", "[+]loop ok", "ready")
    server.kill()
    shows(503, "[-]models no model server is available", "[+]kafka ok", "[+]loop ok", "failed")
    assert page(process.metrics_address, "/nothing")[0] == 404
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.produce(query("a question that waits", "waiting"))
        await desk.linger(1.0)
    assert process.stop() == 0


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


async def test_logs_never_tell_what_was_asked(start_aggregator: StartAggregator, start_server: StartServer) -> None:
    server = start_server(SYNTHETIC__POISON_TOKEN_ID="9947", TELEMETRY__LOG_LEVEL="debug")
    running = start_aggregator(server, settings={"TELEMETRY__LOG_LEVEL": "debug"})
    document = json.dumps({"inputs": [{"text": SECRET}], SECRET: SECRET})
    records = [
        query(SECRET, "good"),
        query(f"{SECRET} poison", "poison"),
        query(f"{SECRET} " * 300, "long"),
        query(SECRET, "option", encoding=99),
        Sent(SECRET.encode(), (TEXT,)),
        Sent(SECRET.encode() + b"\xff", (TEXT,)),
        Sent(SECRET.encode(), (JSON,)),
        Sent(document.encode(), (JSON,)),
        Sent(query(SECRET).value, (JSON,)),
    ]
    async with (
        open_kafka_client(running.kafka, running.topics) as desk,
        grpc.aio.insecure_channel(running.process.address) as door,
    ):
        await desk.exchange(*records, dead=5)
        stub = pb_grpc.EmbeddingsStub(door)
        calls = [stub.Embed(call(text), timeout=60) for text in (SECRET, f"{SECRET} poison", "", f"{SECRET} " * 300)]
        await asyncio.gather(*calls, return_exceptions=True)
    server.kill()
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.produce(query(SECRET, "waiting"))
        await desk.linger(2.0)
    assert running.process.stop() == 0
    for part in (running.process, server):
        lines = part.child.log.text().splitlines()
        assert len(lines) > 5
        for line in lines:
            fields = json.loads(line)
            assert {"ts", "level", "service", "logger", "event"} <= fields.keys()
            assert SECRET not in line.lower()
