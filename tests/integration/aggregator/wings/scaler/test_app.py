"""The whole scaler in one process, among a Kubernetes API, aggregators that answer over gRPC, and log ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError
from typing_extensions import override

from aggregator.__main__ import main
from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.scaler.app import Scaler
from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag, LogEnds
from aggregator.wings.scaler.reporting.server import DemandServer
from aggregator.wings.scaler.settings import (
    AggregatorsSettings,
    ApiSettings,
    KedaSettings,
    ModelSettings,
    PolicySettings,
    ScalerSettings,
)
from k8s.kube.connection import Kubernetes
from k8s.pod.telemetry import TelemetrySettings
from loadtest.stack.ports import free_ports
from protos.aggregator.v1 import aggregator_pb2 as pb
from tests.support.certificates import Authority
from tests.support.fake_kubernetes import SLICES, FakeKubernetesApi, slice_of
from tests.support.until import until

MAX_AGE_S, NEWCOMER_S = 20.0, 30.0
MODEL = "org/model"
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/model"
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
SECRET = "/api/v1/namespaces/default/secrets/tokenbatch-scaler-tls"


class FakeLag(KafkaLag):
    """A topic that stands still; `away`: no broker answers. `reads` counts how often it was asked, once a round."""

    away = False
    end = 1000
    reads = 0

    def __init__(self) -> None:
        super().__init__(KafkaSettings())

    @override
    async def read(self, measured_s: float) -> LogEnds:
        self.reads += 1
        if self.away:
            raise KafkaConnectionError
        return LogEnds({}, {("embed.requests.v1", 0): self.end}, {("embed.requests.v1", 0): 900}, measured_s)


class Cluster:
    """All that is around a scaler, whose clock stands still but for `later`."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.api = FakeKubernetesApi()
        self.lag = FakeLag()
        self.folder = folder
        self.authority = Authority()
        self.calls_per_s = 3000.0
        self.aggregator = DemandServer("127.0.0.1:0", self.demand)
        self.api.put(DEPLOYMENT, {"spec": {"replicas": 2}, "status": {"readyReplicas": 2}})
        self.api.put(SECRET, {"type": "Opaque"})
        data = {
            "requestheader-client-ca-file": self.authority.cert.decode(),
            "requestheader-allowed-names": '["front-proxy"]',
        }
        self.api.put(AUTHENTICATION, {"data": data})

    def demand(self) -> pb.GetDemandResponse:
        replica = pb.Replica(address="pod", token_budget=500, step_time_s=0.125)
        model = pb.ModelDemand(
            model=MODEL, other_tokens_per_s=self.calls_per_s, replicas=[replica], tokens_per_record=30.0
        )
        return pb.GetDemandResponse(models=[model], busy_share=0.5)

    def settings(self, *ports: int) -> ScalerSettings:
        """Of a scaler that listens on the first port, with replicas on all of them; none: on a free one, alone."""
        port = self.aggregator.address.rpartition(":")[2]
        return ScalerSettings(
            models=(ModelSettings(name="model", demand_of=MODEL, deployment="model"),),
            aggregators=AggregatorsSettings(addresses=(f"k8s://aggregators.ns:{port}",), interval_s=0.05),
            policy=PolicySettings(max_age_s=MAX_AGE_S, peak_hold_s=0.0),
            api=ApiSettings(bind="127.0.0.1:0"),
            keda=KedaSettings(bind=f"127.0.0.1:{ports[0] if ports else 0}"),
            peers=tuple(f"127.0.0.1:{each}" for each in ports),
            telemetry=TelemetrySettings(metrics_bind="127.0.0.1:0"),
        )

    @asynccontextmanager
    async def scaler(self, kubernetes: Kubernetes, *ports: int) -> AsyncGenerator[Scaler]:
        scaler = Scaler(self.settings(*ports), kubernetes, self.lag, clock=lambda: self.now_s)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scaler.run(stop))
            yield scaler
            stop.set()

    async def later(self, seconds: float) -> None:
        """So much time passes at once, and then a whole round."""
        self.now_s += seconds
        begun = self.lag.reads + 2
        await until_fresh(lambda: self.lag.reads >= begun)

    def value(self, scaler: Scaler) -> float:
        (found,) = scaler.published.query("tokenbatch_required_replicas", {"model": "model"})
        return found.value

    def busy(self, scaler: Scaler) -> float:
        (found,) = scaler.published.query("tokenbatch_aggregator_busy")
        return found.value


async def until_fresh(holds: Callable[[], bool]) -> None:
    """Wait until it holds; it does not while a figure is stale or missing."""

    def holds_now() -> bool:
        try:
            return holds()
        except StaleInputError:
            return False

    await until(holds_now)


async def until_silent(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wait for an aggregator there to have been asked, and not to have answered."""
    await until_fresh(lambda: any(vars(record).get("address", "").startswith(f"{host}:") for record in caplog.records))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.aggregator.start()
    cluster.api.put(f"{SLICES.format(namespace='ns')}/one", slice_of("127.0.0.1"))
    yield cluster
    await cluster.aggregator.stop()


async def test_demand_becomes_replicas(cluster: Cluster) -> None:
    # (3000 calls + 100 records * 30 tokens / 30 s) / (0.75 * 4000 tokens/s)
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.value(scaler) == pytest.approx(3100 / 3000))
        cluster.calls_per_s = 30_000.0
        await until_fresh(lambda: cluster.value(scaler) == pytest.approx(30_100 / 3000))
        assert scaler.published.query("tokenbatch_consumer_lag")[0].value == 100
        assert cluster.busy(scaler) == 0.5


async def test_scalers_that_began_to_look_at_different_moments_publish_the_same(cluster: Cluster) -> None:
    ports = free_ports(2)
    cluster.lag.end = 3000  # 2100 records of 30 tokens wait, to be worked off in 30 s
    async with cluster.api.started(), AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.scaler(cluster.api.client(), *ports))
        await until_fresh(lambda: cluster.value(first) == pytest.approx(5100 / 3000))
        cluster.api.put(DEPLOYMENT, {"spec": {"replicas": 5}, "status": {"readyReplicas": 2}})
        await cluster.later(0.0)
        cluster.lag.end = 30_000
        await cluster.later(0.0)
        assert cluster.value(first) == pytest.approx(5100 / 3000)
        second = await stack.enter_async_context(cluster.scaler(cluster.api.client(), *reversed(ports)))
        await until_fresh(lambda: cluster.value(second) == pytest.approx(5100 / 3000))
        await cluster.later(0.0)
        await cluster.later(0.0)
        assert [cluster.value(each) for each in (first, second)] == [pytest.approx(5100 / 3000)] * 2
        cluster.calls_per_s = 9000.0
        await until_fresh(
            lambda: [cluster.value(each) for each in (first, second)] == [pytest.approx(11_100 / 3000)] * 2
        )


async def test_an_api_server_that_is_away_changes_no_figure_until_too_long(cluster: Cluster) -> None:
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.value(scaler) > 0)
        cluster.api.away = True
        cluster.api.end_watches()
        await cluster.later(MAX_AGE_S)
        assert cluster.value(scaler) > 0
        await cluster.later(1.0)
        with pytest.raises(StaleInputError, match=r"not known: the Deployment model cannot be read$"):
            cluster.value(scaler)
        cluster.api.away = False
        await until_fresh(lambda: cluster.value(scaler) > 0)


async def test_without_kafka_there_is_an_error_and_no_zero(cluster: Cluster) -> None:
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.value(scaler) > 0)
        cluster.lag.away = True
        await cluster.later(MAX_AGE_S + 1.0)
        with pytest.raises(StaleInputError, match=r"not known: Kafka does not answer$"):
            cluster.value(scaler)
        cluster.lag.away = False
        await until_fresh(lambda: cluster.value(scaler) > 0)


async def test_an_aggregator_that_stops_answering_is_an_error_until_it_is_gone(cluster: Cluster) -> None:
    other = DemandServer(cluster.aggregator.address.replace("127.0.0.1", "127.0.0.2"), cluster.demand)
    path = f"{SLICES.format(namespace='ns')}/one"
    await other.start()
    cluster.api.put(path, slice_of("127.0.0.1", "127.0.0.2"))
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.busy(scaler) == 1.0)
        await other.stop()
        await cluster.later(MAX_AGE_S + 1.0)
        with pytest.raises(StaleInputError, match=r"not known: aggregator 127\.0\.0\.2:\d+ does not answer$"):
            cluster.value(scaler)
        cluster.api.put(path, slice_of("127.0.0.1"))
        await until_fresh(lambda: cluster.value(scaler) > 0)


async def test_a_pod_that_never_starts_holds_up_no_figure(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{SLICES.format(namespace='ns')}/two"
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.value(scaler) > 0)
        # as a pod stands in a Service that publishes those that are not ready, while its image cannot be pulled
        cluster.api.put(path, slice_of("127.0.0.3", name="two", ready=True, serving=False))
        await until_silent("127.0.0.3", caplog)
        for _ in range(10):
            await cluster.later(NEWCOMER_S / 4)
            assert cluster.value(scaler) > 0
        cluster.api.put(path, slice_of("127.0.0.3", name="two", ready=True, serving=True))

        async def pass_time() -> None:
            while cluster.value(scaler) > 0:
                await cluster.later(5.0)

        with pytest.raises(StaleInputError, match=r"aggregator 127\.0\.0\.3:\d+ does not answer"):
            await asyncio.wait_for(pass_time(), 60)


async def test_a_pod_that_went_down_is_missed_for_a_while_and_then_overlooked(cluster: Cluster) -> None:
    other = DemandServer(cluster.aggregator.address.replace("127.0.0.1", "127.0.0.2"), cluster.demand)
    path = f"{SLICES.format(namespace='ns')}/two"
    await other.start()
    cluster.api.put(path, slice_of("127.0.0.2", name="two", ready=True, serving=True))
    async with cluster.api.started() as kubernetes, cluster.scaler(kubernetes) as scaler:
        await until_fresh(lambda: cluster.busy(scaler) == 1.0)
        await other.stop()
        cluster.api.put(path, slice_of("127.0.0.2", name="two", ready=True, serving=False))
        await cluster.later(MAX_AGE_S + 1.0)
        with pytest.raises(StaleInputError, match=r"aggregator 127\.0\.0\.2:\d+ does not answer"):
            cluster.value(scaler)
        await cluster.later(NEWCOMER_S - MAX_AGE_S)
        await until_fresh(lambda: cluster.busy(scaler) == 0.5)
        assert cluster.value(scaler) > 0


def test_a_wrong_setting_ends_the_start_with_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "scaler.yaml"
    file.write_text("policy: {drain: 3}\n")
    assert main(["scaler", "--config", str(file)]) == 2
    assert "policy.drain is not a setting: did you mean policy.drain_s?" in capsys.readouterr().err
