"""The official client is used as ADR 22 says: accounts, time-outs, threads that end, fields that it does not know."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import incluster_config

from k8s.kube import connection
from k8s.kube.client import connect
from k8s.kube.connection import Kubernetes, configuration
from k8s.kube.objects import KubernetesError
from tests.support.fake_kubernetes import FakeKubernetesApi
from tests.support.until import until

SECRET = "/api/v1/namespaces/ns/secrets/one"


class AMinuteLater:
    @staticmethod
    def now() -> datetime:
        return datetime.now() + timedelta(seconds=61)  # noqa: DTZ005 - as the client reckons


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kubernetes"]


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
            await kubernetes.get(SECRET)
        with pytest.raises(KubernetesError, match=r"^503: the API server is away$"):
            await anext(kubernetes.watch_endpoint_slices("ns", "models", "1"))


async def test_a_server_that_falls_silent_is_not_waited_for(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_TIMEOUT_S", 0.1)
    monkeypatch.setattr(connection, "_WATCH_SILENCE_S", 0.1)
    kubernetes = Kubernetes(Configuration(silent, proxy=""))
    for call in (
        kubernetes.get(SECRET),
        anext(kubernetes.watch_endpoint_slices("ns", "models", "1")),
    ):
        with pytest.raises(KubernetesError, match=r"cannot be reached.*timed out"):
            await asyncio.wait_for(call, 30)


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
