"""A real Prometheus scrapes a running stack: every query of the dashboard and of the alerts finds what it asks for."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
import urllib.request
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest
import yaml

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import Part
from loadtest.stack.ports import free_ports
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, Service
from loadtest.up.batch import run_batch
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.alerts.prometheus import Prometheus
from tests.support.kafka_client import KafkaClient, Topics, open_kafka_client, query
from tests.support.processes import synthetic

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

CHART = Path(__file__).parents[2] / "helm/tokenbatch"
DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text("utf-8"))
NAMESPACE = "ns"
TOPICS = Topics(name := f"requests-{secrets.token_hex(4)}", f"{name}-replies")
POISON, POISON_ID = "poison", "9947"
_COMPARED = re.compile(r"\s(?:>|and|or|unless)(?: on \([^)]*\))?(?: group_left)?\s")


def panels() -> Iterator[str]:
    """Every query of the dashboard, as Grafana sends it, but those of what the stack has not: texts and a Redis."""
    values = {"$__rate_interval": "30s", "$namespace": NAMESPACE, "$release": ".*", "$model": ".*"}
    row = ""
    for panel in DASHBOARD["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        for target in panel.get("targets", ()) if row not in {"Generation", "Redis"} else ():
            yield re.sub(r"\$\w+", lambda name: values[name[0]], target["expr"])


def measured(expression: str) -> Iterator[str]:
    """What an alert looks at, without the numbers that it compares with: data there is data also when all is well."""
    for part in _COMPARED.split(" ".join(expression.split())):
        if not re.fullmatch(r"[\d.]+", part):
            yield part


ALERTS = {
    rule["alert"]: tuple(measured(rule["expr"]))
    for rule in yaml.safe_load((CHART / "files/alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
}


def scaler(log_file: Path, kafka: str, demand: str) -> Service:
    """The scaler, outside of Kubernetes."""
    metrics_port, keda_port = free_ports(2)
    told = {
        "MODELS": json.dumps([{"name": DEFAULT_MODEL_NAME}]),
        "KAFKA__BOOTSTRAP_SERVERS": kafka,
        "KAFKA__TOPICS": json.dumps([{"name": TOPICS.requests}]),
        "KAFKA__GROUP_ID": TOPICS.requests,
        "AGGREGATORS__ADDRESSES": json.dumps([demand]),
        "AGGREGATORS__INTERVAL_S": "1",
        "API": '{"bind": ""}',
        "KEDA__BIND": f"127.0.0.1:{keda_port}",
        "TELEMETRY__METRICS_BIND": f"127.0.0.1:{metrics_port}",
    }
    environment = {f"TOKENBATCH_SCALER_{key}": value for key, value in told.items()}
    return Service("scaler", "aggregator scaler", environment, metrics_port, log_file)


class Stack:
    """Kafka, one model server, one aggregator, the scaler, and Prometheus over them."""

    def __init__(self, folder: Path) -> None:
        (demand_port,) = free_ports(1)
        self.kafka = KafkaBroker(folder / "kafka")
        self.server = synthetic(
            folder / "modelserver.log",
            PROFILE__ENABLED="true",
            CONSTANTS='{"modelserver.wings.profile.settings:ProfileSettings.budget_s": 2}',
            SYNTHETIC__POISON_TOKEN_ID=POISON_ID,
        )
        self.aggregator = Aggregator(
            folder / "aggregator.log",
            kafka=self.kafka.bootstrap,
            model=DEFAULT_MODEL_NAME,
            servers=[self.server.address],
            settings={
                "KAFKA__TOPICS": json.dumps([{"name": TOPICS.requests}]),
                "KAFKA__REPLY_TOPIC": TOPICS.replies,
                "KAFKA__GROUP_ID": TOPICS.requests,
                "KAFKA__PARTITIONS": "2",
                "SLA__LATENCY_S": "2",  # without a promise nothing is late, and nothing counts it
                "DEMAND__BIND": f"127.0.0.1:{demand_port}",
                "BATCHES__STORE": f"file://{folder / 'store'}",
                "BATCHES__TOPIC": f"{TOPICS.requests}-chunks",
            },
        )
        self.scaler = scaler(folder / "scaler.log", self.kafka.bootstrap, f"127.0.0.1:{demand_port}")
        services: dict[str, Service] = {
            "aggregator-1": self.aggregator,
            "model-server-1": self.server,
            "scaler-1": self.scaler,
        }
        pods = {pod: service.metrics_address for pod, service in services.items()}
        self.prometheus = Prometheus(folder / "prometheus", pods, CHART / "files/alerts.yaml", NAMESPACE)
        self.parts: tuple[Part, ...] = (self.kafka, self.server, self.aggregator, self.scaler, self.prometheus)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        for part in stack.parts:
            part.start()
        yield stack
    finally:
        for part in reversed(stack.parts):
            part.kill()


@asynccontextmanager
async def traffic(stack: Stack) -> AsyncGenerator[None]:
    """Requests by Kafka and gRPC, and batches; the engine fails on a few of the requests; until the block ends."""
    async with (
        open_kafka_client(stack.kafka.bootstrap, TOPICS) as desk,
        grpc.aio.insecure_channel(stack.aggregator.address) as channel,
    ):
        flowing = asyncio.create_task(_flow(desk, pb_grpc.EmbeddingsStub(channel), stack.aggregator))
        try:
            yield
        finally:
            flowing.cancel()
            with suppress(asyncio.CancelledError):
                await flowing


async def _flow(desk: KafkaClient, door: pb_grpc.EmbeddingsAsyncStub, aggregator: Aggregator) -> None:
    http, number = aggregator.http_address, 0
    while True:
        number += 1
        texts = [f"question {number} of {each}" for each in range(20)] + [POISON] * (number % 5 == 0)
        await desk.produce(*(query(text, f"{number}-{place}") for place, text in enumerate(texts)))
        for text in texts[-2:]:
            with suppress(grpc.aio.AioRpcError):  # of the poison
                await door.Embed(pb.EmbedRequest(request_id="call", inputs=[pb.Input(text=text)]), timeout=20)
        await asyncio.to_thread(urllib.request.urlopen, f"http://{http}/health", timeout=20)
        await asyncio.to_thread(run_batch, http, aggregator.metrics_address, texts[:1])
        await asyncio.sleep(0.2)


async def test_every_query_of_dashboard_and_alerts_returns_data(stack: Stack) -> None:
    empty = {*panels(), *(part for parts in ALERTS.values() for part in parts)}
    deadline_s = time.monotonic() + 90.0
    async with traffic(stack):
        while empty and time.monotonic() < deadline_s:
            await asyncio.sleep(1.0)
            empty = {each for each in empty if not await asyncio.to_thread(stack.prometheus.query, each)}
        assert sorted(empty) == []
        while stack.prometheus.down():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.5)


async def test_the_alerts_tell_of_what_goes_wrong_here_and_of_nothing_else(stack: Stack) -> None:
    async with traffic(stack):
        firing = await asyncio.to_thread(until_something_fires, stack.prometheus)
    assert firing == {"TokenbatchDeadLetters"}  # of the poison; the others wait for minutes
    health = {rule["name"]: (rule["health"], rule.get("lastError", "")) for rule in stack.prometheus.rules()}
    assert health == dict.fromkeys(ALERTS, ("ok", ""))


def until_something_fires(prometheus: Prometheus) -> set[str]:
    """The names of the alerts that fire first, within a minute; none after that."""
    deadline_s = time.monotonic() + 60.0
    firing: set[str] = set()
    while not firing and time.monotonic() < deadline_s:
        time.sleep(0.5)
        firing = {rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"}
    return firing


@pytest.mark.parametrize(
    ("variable", "values"), [("namespace", {NAMESPACE}), ("release", {None}), ("model", {DEFAULT_MODEL_NAME})]
)
def test_the_dashboard_is_offered_the_values_of_a_variable(
    stack: Stack, variable: str, values: set[str | None]
) -> None:
    """A release has a name where the chart's monitors scrape it."""
    (found,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == variable)
    ((metric, label),) = re.findall(r"^label_values\((.+), (\w+)\)$", found["query"])
    metric = metric.replace("$namespace", NAMESPACE).replace("$release", ".*")
    deadline_s = time.monotonic() + 60.0
    while not (series := stack.prometheus.query(metric)) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    assert {each["metric"].get(label) for each in series} == values
