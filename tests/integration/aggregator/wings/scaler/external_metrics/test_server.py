"""The metrics API as an API server uses it: over TLS, by its front-proxy certificate, in Kubernetes' words."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aggregator.wings.scaler.external_metrics.identity import Identity, make, utc_now
from aggregator.wings.scaler.external_metrics.server import BadSelector, ExternalMetricsApi, labels_of, quantity
from aggregator.wings.scaler.keda import GrpcPort, KedaScaler
from aggregator.wings.scaler.measuring.figures import Figure
from aggregator.wings.scaler.published import Published
from tests.support.certificates import Authority

NAME = "scaler.ns.svc"
MOST = 8
BASE = "/apis/external.metrics.k8s.io/v1beta1"
METRIC = f"{BASE}/namespaces/ns/tokenbatch_required_replicas"


class Server:
    """The API with one model's figure, and the means to ask it."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 100.0
        self.folder = folder
        self.authority = Authority()
        self.published = Published(["m"], "scaler", 20.0, lambda: self.now_s)
        self.published.figures = {"m": Figure(2.3456, 7, 100.0)}
        self.addresses: dict[tuple[str, str], str] = {}
        self.api = ExternalMetricsApi(self.published, "ns", MOST, find=lambda *place: self.addresses[place])
        self.served = make([NAME], utc_now())

    async def serve(self, *names: str) -> None:
        await self.api.use("127.0.0.1:0", self.tls(), names)

    def tls(self) -> ssl.SSLContext:
        return Identity(self.served, self.authority.cert.decode(), ()).server_context()

    async def ask(self, path: str, common_name: str | None = "front-proxy", **headers: str) -> tuple[int, Any]:
        tls = self.authority.client(self.folder, self.served.ca_bundle.decode(), common_name)
        url = f"https://{self.api.address}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, ssl=tls, server_hostname=NAME, headers=headers) as response,
        ):
            known = response.content_type == "application/json"
            return response.status, await (response.json() if known else response.text())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    await server.serve("front-proxy")
    yield server
    await server.api.close()


async def test_the_autoscaler_gets_a_list_of_values(server: Server) -> None:
    code, answer = await server.ask(f"{METRIC}?labelSelector=model%3Dm")
    assert code == 200
    assert answer["kind"] == "ExternalMetricValueList"
    (item,) = answer["items"]
    assert item["metricName"] == "tokenbatch_required_replicas"
    assert item["metricLabels"] == {"scaler": "scaler", "model": "m"}
    assert item["value"] == "2346m"
    assert item["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0m"), (1.0, "1000m"), (2.0001, "2001m"), (0.1 + 0.2, "300m"), (12.34567, "12346m")]
)
def test_a_quantity_is_never_less_than_its_value(value: float, text: str) -> None:
    assert quantity(value) == text


async def test_without_a_client_certificate_nothing_is_told(server: Server) -> None:
    for path in (METRIC, BASE, "/openapi/v2"):
        code, answer = await server.ask(path, common_name=None)
        assert (code, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")


async def test_another_name_than_the_front_proxys_is_refused(server: Server) -> None:
    code, answer = await server.ask(METRIC, common_name="somebody")
    assert (code, answer["reason"]) == (403, "Forbidden")


async def test_a_certificate_of_another_authority_does_not_connect(server: Server, tmp_path: Path) -> None:
    stranger = Authority("stranger").client(tmp_path, server.served.ca_bundle.decode(), "front-proxy")
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{server.api.address}{METRIC}", ssl=stranger, server_hostname=NAME) as response,
        ):
            await response.read()


async def test_what_is_stale_is_unavailable_and_says_why(server: Server) -> None:
    server.now_s = 200.0
    server.published.trouble = "Kafka does not answer"
    code, answer = await server.ask(METRIC)
    assert (code, answer["reason"]) == (503, "ServiceUnavailable")
    assert "Kafka does not answer" in answer["message"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{BASE}/namespaces/ns/other", 404),
        (f"{BASE}/namespaces/other/tokenbatch_required_replicas", 404),
        (f"{METRIC}?labelSelector=model%3Dx", 404),
        (f"{METRIC}?labelSelector=a%20b", 400),
        ("/apis/nothing", 404),
    ],
)
async def test_what_there_is_not_is_said_as_kubernetes_does(server: Server, path: str, code: int) -> None:
    found, answer = await server.ask(path)
    assert (found, answer["kind"], answer["code"]) == (code, "Status", code)


@pytest.fixture
async def neighbour(server: Server) -> AsyncIterator[Published]:
    """The figures of another release, whose scaler `server` finds as the Service b-scaler of the namespace other."""
    published = Published(["m"], "b-scaler", 20.0, lambda: 100.0)
    published.figures = {"m": Figure(5.5, 9, 100.0)}
    published.busy = (0.25, 100.0)
    port = GrpcPort(KedaScaler(published, 1.0), "127.0.0.1:0", MOST)
    await port.start()
    server.addresses["b-scaler", "other"] = server.addresses["b-scaler", "ns"] = port.address
    yield published
    await port.stop(0)


@pytest.mark.parametrize("namespace", ["other", "ns"])
async def test_the_figures_of_another_release_come_from_its_own_scaler(
    server: Server, neighbour: Published, namespace: str
) -> None:
    assert neighbour.figures
    base = f"{BASE}/namespaces/{namespace}"
    code, answer = await server.ask(f"{base}/tokenbatch_required_replicas?labelSelector=model%3Dm%2Cscaler%3Db-scaler")
    assert code == 200
    (item,) = answer["items"]
    assert (item["value"], item["metricLabels"]) == ("5500m", {"model": "m", "scaler": "b-scaler"})
    _, answer = await server.ask(f"{base}/tokenbatch_aggregator_busy?labelSelector=scaler%3Db-scaler")
    assert [each["value"] for each in answer["items"]] == ["250m"]


async def test_only_the_name_of_a_service_is_followed(server: Server) -> None:
    code, answer = await server.ask(f"{BASE}/namespaces/other/tokenbatch_required_replicas?labelSelector=scaler%3Da.b")
    assert (code, answer["reason"]) == (404, "NotFound")
    assert "other is another release's namespace" in answer["message"]


async def test_discovery_tells_of_one_resource(server: Server) -> None:
    _, groups = await server.ask("/apis")
    _, group = await server.ask("/apis/external.metrics.k8s.io")
    _, resources = await server.ask(BASE)
    entry = {key: value for key, value in group.items() if key not in {"kind", "apiVersion"}}
    assert [{**each, **entry} for each in groups["groups"]] == groups["groups"]
    assert group["preferredVersion"]["groupVersion"] == resources["groupVersion"] == "external.metrics.k8s.io/v1beta1"
    assert [each["namespaced"] for each in resources["resources"]] == [True]
    assert [(await server.ask(f"/openapi/{version}"))[0] for version in ("v2", "v3")] == [200, 200]


async def test_a_renewed_certificate_is_served_on_the_same_address(server: Server) -> None:
    address = server.api.address
    server.served = make([NAME], utc_now())
    await server.serve("front-proxy")
    assert server.api.address == address
    assert (await server.ask(METRIC))[0] == 200


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ("", {}),
        ("model=m", {"model": "m"}),
        ("model==m", {"model": "m"}),
        ("model = m , a.b/zone=", {"model": "m", "a.b/zone": ""}),
    ],
)
def test_a_selector_says_which_labels_a_series_must_have(selector: str, labels: dict[str, str]) -> None:
    assert labels_of(selector) == labels


@pytest.mark.parametrize("selector", ["model=m=n", "model!=m", "model in (m)", "model", "!model", "model>3", "=m"])
def test_anything_else_is_refused(selector: str) -> None:
    with pytest.raises(BadSelector, match="label=value"):
        labels_of(selector)


async def test_an_idle_connection_gives_way_even_before_its_handshake(server: Server) -> None:
    host, _, port = server.api.address.rpartition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(3 * MOST)]
    code, _ = await server.ask(METRIC)
    assert code == 200
    async with asyncio.timeout(10):
        ended = [await reader.read() for reader, _ in idle[: 2 * MOST + 1]]
    assert ended == [b""] * (2 * MOST + 1)
    assert not any(reader.at_eof() for reader, _ in idle[2 * MOST + 1 :])
    for _, writer in idle:
        writer.close()
