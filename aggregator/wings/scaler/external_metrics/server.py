"""Serve external.metrics.k8s.io/v1beta1 to the API server, and to nobody else."""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from typing_extensions import override

from aggregator.wings.scaler.external_metrics import discovery
from aggregator.wings.scaler.external_metrics.identity import utc_now
from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.other_scalers import Find, ask_release, in_cluster
from aggregator.wings.scaler.published import SCALER, Published, UnknownMetric, Value
from k8s.kube.external_metrics import GROUP, VERSION
from k8s.pod.http.connections import Connections
from k8s.pod.http.exchange import TEXT, Exchange, HttpError, Service
from k8s.pod.http.server import HttpServer

_METRIC = re.compile(rf"/apis/{GROUP}/{VERSION}/namespaces/([^/]+)/([^/]+)")
_OPEN = frozenset({"/healthz", "/livez", "/readyz"})
_GRACE_S = 2.0  # for calls in flight


class ExternalMetricsApi(Service):
    """The HTTPS server. `use` starts it, and is called again when the certificates change."""

    def __init__(
        self,
        published: Published,
        namespace: str,
        most_connections: int,
        find: Find = in_cluster,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._published = published
        self._find = find
        self._namespace = namespace
        self._clock = clock
        self._client_names: frozenset[str] = frozenset()
        self._tls: ssl.SSLContext | None = None
        self._connections = Connections(most_connections)
        self._server: HttpServer | None = None
        self.address = ""

    async def use(self, bind: str, tls: ssl.SSLContext, client_names: Collection[str]) -> None:
        """Listen with these certificates; a client must have one of the names, if there are any.

        Raises StartError if the address cannot be bound.
        """
        self._client_names, self._tls = frozenset(client_names), tls
        if self._server is None:
            server = HttpServer(self, self._connections, lambda: self._tls or tls)
            self.address = await server.start("api.bind", bind)
            self._server = server

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE_S)

    @override
    def open(self, exchange: Exchange) -> None:
        """The API server has authenticated and authorised its caller; TLS has verified the API server's certificate."""
        if exchange.method not in {"GET", "HEAD"}:
            raise HttpError(405, "MethodNotAllowed", "metrics can be read only", allow="GET, HEAD")
        if exchange.path in _OPEN:
            exchange.answer(200, b"ok", {"content-type": TEXT})
            return
        name = _common_name(exchange.peer_certificate)
        if name is None:
            raise HttpError(401, "Unauthorized", "only the API server may ask, by its client certificate")
        if self._client_names and name not in self._client_names:
            raise HttpError(403, "Forbidden", f"the client certificate of {name!r} is not the API server's")
        if (document := discovery.DOCUMENTS.get(exchange.path)) is not None:
            _answer(exchange, 200, document)
        elif (metric := _METRIC.fullmatch(exchange.path)) is not None:
            exchange.serve = lambda exchange: exchange.start(self._metric(exchange, *metric.groups()))
        else:
            raise HttpError(404, "NotFound", f"there is nothing at {exchange.path}")

    @override
    def fail(self, exchange: Exchange, error: Exception) -> None:
        status, reason = _REASONS.get(type(error), (500, "InternalError"))
        if isinstance(error, HttpError):
            status, reason = error.status, error.name
            exchange.keeps_alive = exchange.keeps_alive and not error.closes
        _answer(exchange, status, discovery.status(status, reason, str(error)))

    async def _metric(self, exchange: Exchange, namespace: str, metric: str) -> None:
        selector = parse_qs(exchange.url.partition(b"?")[2].decode("latin-1")).get("labelSelector", [""])[0]
        values = await self._values(namespace, metric, selector)
        timestamp = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        _answer(
            exchange,
            200,
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/{VERSION}",
                "metadata": {},
                "items": [_item(metric, value, timestamp) for value in values],
            },
        )

    async def _values(self, namespace: str, metric: str, selector: str) -> Sequence[Value]:
        """The figures of this release; those of another release come from its scaler, which the selector names."""
        labels = labels_of(selector)
        if namespace == self._namespace and labels.get(SCALER, self._published.scaler) == self._published.scaler:
            return self._published.query(metric, labels)
        return await ask_release(self._find, namespace, metric, labels)


def quantity(value: float) -> str:
    """A Kubernetes quantity in thousandths, rounded up, so that the autoscaler never sees too little."""
    return f"{math.ceil(value * 1000 - 1e-6)}m"


def _item(metric: str, value: Value, timestamp: str) -> discovery.Document:
    return {
        "metricName": metric,
        "metricLabels": dict(value.labels),
        "timestamp": timestamp,
        "value": quantity(value.value),
    }


def _common_name(certificate: Any) -> str | None:
    """The common name of a verified client certificate; None without a certificate."""
    if not certificate:
        return None
    for parts in certificate.get("subject", ()):
        for key, value in parts:
            if key == "commonName":
                return str(value)
    return ""


def _answer(exchange: Exchange, status: int, document: discovery.Document) -> None:
    exchange.answer(status, json.dumps(document).encode(), {"content-type": "application/json"})


_EQUALITY = re.compile(r"\s*([\w./-]+)\s*==?\s*([\w.-]*)\s*")


class BadSelector(ValueError):
    """It is not a list of labels with a value each."""


def labels_of(selector: str) -> dict[str, str]:
    """The labels that a selector such as `model=m,scaler=s` asks for. Raises BadSelector."""
    labels: dict[str, str] = {}
    for requirement in selector.split(",") if selector.strip() else ():
        match = _EQUALITY.fullmatch(requirement)
        if match is None:
            raise BadSelector(f"{requirement!r}: a metric is selected by label=value alone")
        labels[match[1]] = match[2]
    return labels


_REASONS: dict[type[Exception], tuple[int, str]] = {
    UnknownMetric: (404, "NotFound"),
    BadSelector: (400, "BadRequest"),
    StaleInputError: (503, "ServiceUnavailable"),
}
"""How Kubernetes names what can go wrong."""
