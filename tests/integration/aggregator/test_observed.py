"""What an operator sees: every metric of the contract, health, and logs that never tell what was asked."""

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
from tests.support.scrape import metrics, page
from tests.support.until import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

# By their names in Prometheus; a histogram's are three.
COUNTERS = (
    *("embed_batch_sends_total", "embed_slo_violations_total", "embed_requests_total", "embed_retries_total"),
    *("embed_dead_letters_total", "embed_expired_total", "embed_coalesced_total"),
    *("embed_consumer_rebalances_total", "embed_commit_failures_total", "embed_consumer_lost_total"),
)
HISTOGRAMS = (
    *("embed_batch_tokens", "embed_batch_queries", "embed_batch_fill_ratio"),
    *("embed_engine_duration_seconds", "embed_e2e_duration_seconds"),
)
GAUGES = (
    *("embed_queue_tokens", "embed_queue_age_seconds", "embed_token_budget", "embed_saturation_point"),
    *("embed_replica_inflight_tokens", "embed_replica_state"),
    *("embed_consumer_lag", "embed_consumer_uncommitted_span", "embed_consumer_paused"),
)
SECRET = "zyzzyva"


def call(text: str) -> pb.EmbedRequest:
    """A gRPC request."""
    return pb.EmbedRequest(request_id="call", inputs=[pb.Input(text=text)])


async def test_every_metric_of_the_contract_is_there_after_some_traffic(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    server = start_server(
        PROFILE__ENABLED="true", PROFILE__BUDGET_S="2", SYNTHETIC__POISON_TOKEN_ID="9947", SYNTHETIC__FIXED_S="0.1"
    )
    running = start_aggregator(server, settings={"SLA__LATENCY_S": "0.01"})
    expired = query("late", "late")
    expired = Sent(expired.value, (*expired.headers, ("ce_expirytime", b"2001-01-01T00:00:00Z")))
    async with (
        open_kafka_client(running.kafka, running.topics) as desk,
        grpc.aio.insecure_channel(running.process.address) as door,
    ):
        await desk.exchange(expired, Sent(b"\xff"), query("poison", "poison"), dead=2)
        await desk.exchange(*(query("the same", f"twin-{number}") for number in range(200)))
        await pb_grpc.EmbeddingsStub(door).Embed(call("by gRPC"), timeout=60)
        await desk.until_committed(running.group)
    shown = metrics(running.process.metrics_address)
    parts = {name + part for name in HISTOGRAMS for part in ("_bucket", "_sum", "_count")}
    assert {*COUNTERS, *GAUGES, *parts} - shown.names == set()
    for name in ("embed_requests_total", "embed_slo_violations_total", "embed_e2e_duration_seconds_count"):
        assert shown.value(name, source="kafka") > 0, name
        assert shown.value(name, source="grpc") > 0, name
    for name in ("embed_coalesced_total", "embed_expired_total", "embed_retries_total", "embed_saturation_point"):
        assert shown.value(name) > 0, name
    assert shown.value("embed_requests_total") == 204
    assert shown.value("embed_consumer_lag") == 0


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
    """Whether anybody listens there."""
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
