"""The official client is used as ADR 22 says: accounts, time-outs, threads that end, fields that it does not know."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException, Configuration, DiscoveryV1Api
from kubernetes.config import incluster_config

from aggregator.errors import StartError
from k8s import connection
from k8s.api import KubernetesError, connect
from k8s.connection import Connection, configuration
from tests.fakes.kubernetes_api import FakeKubernetesApi

SECRET = "/api/v1/namespaces/ns/secrets/one"


class AMinuteLater:
    @staticmethod
    def now() -> datetime:
        return datetime.now() + timedelta(seconds=61)  # noqa: DTZ005 - as the client reckons


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kubernetes"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - a thread that ends tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's service account; its token."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("an authority")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    return token


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_pod_is_its_service_account_and_reads_the_token_anew(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = configuration()
    assert (found.host, found.ssl_ca_cert) == ("https://[fd00::1]:443", str(account.parent / "ca.crt"))
    assert found.get_api_key_with_prefix("BearerToken") == "bearer first"
    account.write_text("second")
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=AMinuteLater, timedelta=timedelta))
    assert found.get_api_key_with_prefix("BearerToken") == "bearer second"


def test_a_pod_without_a_token_is_told_what_is_missing(account: Path) -> None:
    account.unlink()
    with pytest.raises(StartError, match=r"token file does not exist.*give addresses as host:port"):
        connect()


async def test_outside_of_a_cluster_the_kubeconfig_says_where_and_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    fake = FakeKubernetesApi()
    fake.put(SECRET, {})
    async with fake.started():
        content = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": fake.url}}],
            "users": [{"name": "me", "user": {"token": "mine"}}],
        }
        file.write_text(yaml.safe_dump(content))
        kubernetes = connect()
        await kubernetes.get(SECRET)
        await kubernetes.close()
    assert fake.authorization == "Bearer mine"


async def test_fields_that_the_client_does_not_know_survive_an_update() -> None:
    fake = FakeKubernetesApi()
    fake.put(SECRET, {"metadata": {"invented": {"later": 1}}, "data": {}})
    async with fake.started() as kubernetes:
        read = await kubernetes.get(SECRET)
        written = await kubernetes.update(SECRET, read | {"data": {"key": "dmFsdWU="}})
    assert written["metadata"]["invented"] == {"later": 1}
    assert fake.objects[SECRET]["data"] == {"key": "dmFsdWU="}


async def test_a_refusal_says_why() -> None:
    fake = FakeKubernetesApi()
    async with fake.started() as kubernetes:
        with pytest.raises(KubernetesError, match=rf"^404: {SECRET} not found$") as refused:
            await kubernetes.get(SECRET)
        assert refused.value.status == 404
        fake.away = True
        with pytest.raises(KubernetesError, match=r"^503: the API server is away$"):
            await kubernetes.endpoint_slices("ns", "models")
        with pytest.raises(KubernetesError, match=r"^503: the API server is away$"):
            await anext(kubernetes.watch_endpoint_slices("ns", "models", "1"))


async def test_nobody_there_is_no_status() -> None:
    kubernetes = Connection(Configuration("http://127.0.0.1:1", proxy=""))
    with pytest.raises(KubernetesError, match="cannot be reached") as refused:
        await kubernetes.get(SECRET)
    assert refused.value.status == 0


async def test_a_server_that_falls_silent_is_not_waited_for(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_TIMEOUT_S", 0.1)
    monkeypatch.setattr(connection, "_WATCH_SILENCE_S", 0.1)
    kubernetes = Connection(Configuration(silent, proxy=""))
    for call in (
        kubernetes.get(SECRET),
        kubernetes.endpoint_slices("ns", "models"),
        anext(kubernetes.watch_endpoint_slices("ns", "models", "1")),
    ):
        with pytest.raises(KubernetesError, match=r"cannot be reached.*timed out"):
            await asyncio.wait_for(call, 30)


async def test_a_watch_that_died_silently_is_noticed_once_a_bookmark_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def refuse(*_: object, **options: object) -> None:
        asked.update(options)
        raise ApiException(status=503)

    monkeypatch.setattr(DiscoveryV1Api, "list_namespaced_endpoint_slice", refuse)
    with pytest.raises(KubernetesError):
        await anext(Connection(Configuration("http://127.0.0.1:1")).watch_endpoint_slices("ns", "models", "1"))
    _, silence_s = asked["_request_timeout"]
    assert asked["allow_watch_bookmarks"]
    assert 60 < silence_s <= 90  # the API server sends one a minute


async def test_a_watch_that_is_left_ends_its_thread() -> None:
    fake = FakeKubernetesApi()
    async with fake.started() as kubernetes:
        events = kubernetes.watch_endpoint_slices("ns", "models", "1")
        watching = asyncio.ensure_future(anext(events))
        await until(lambda: bool(fake.calls))
        await asyncio.sleep(0.1)
        assert threads()
        watching.cancel()
        await until(lambda: not threads())


@pytest.mark.slow
def test_addresses_as_host_and_port_do_not_cost_the_clients_import() -> None:
    script = (
        "import sys, aggregator.__main__, k8s.scaler.__main__\n"
        "from aggregator.replicas.discovery import Discovery, Target\n"
        "Discovery([Target('x:1', 'a')])\n"
        "sys.exit('kubernetes' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
