"""An authority that an older Python takes is taken by a newer one."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from kubernetes import client

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import client_options
from k8s.kube.connection import Kubernetes


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as Python 3.13 makes them."""
    real = ssl.create_default_context

    def context(*arguments: Any, **options: Any) -> ssl.SSLContext:
        made = real(*arguments, **options)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", context)


def is_strict(context: ssl.SSLContext) -> bool:
    return bool(context.verify_flags & ssl.VERIFY_X509_STRICT)


def test_authorities_of_clusters_may_lack_extensions() -> None:
    configuration = client.Configuration(host="https://10.0.0.1:6443")
    pools: Any = Kubernetes(configuration)._client.rest_client.pool_manager  # noqa: SLF001 - of the library's client
    assert not is_strict(pools.connection_pool_kw["ssl_context"])


def test_authorities_of_brokers_may_lack_extensions() -> None:
    options = client_options(KafkaSettings.model_validate({"security_protocol": "SSL"}))
    assert not is_strict(options["ssl_context"])
