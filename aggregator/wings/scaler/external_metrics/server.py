"""Serve external.metrics.k8s.io/v1beta1 to the API server, and to nobody else."""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from socket import AF_INET, AF_INET6, SHUT_RDWR, SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any

from aiohttp import web
from typing_extensions import override

from aggregator.wings.scaler.external_metrics import discovery
from aggregator.wings.scaler.external_metrics.identity import utc_now
from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.other_scalers import Find, ask_release, in_cluster
from aggregator.wings.scaler.published import SCALER, Published, UnknownMetric, Value
from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError

_BASE = f"/apis/{discovery.GROUP}/{discovery.VERSION}"
_OPEN = frozenset({"/healthz", "/livez", "/readyz"})
_GRACE_S = 2.0  # for calls in flight


class ExternalMetricsApi:
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
        self._runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=_GRACE_S)
        self._most_connections = most_connections
        self._opened: list[socket] = []
        self._site: web.SockSite | None = None
        self.address = ""

    async def use(self, bind: str, tls: ssl.SSLContext, client_names: Collection[str]) -> None:
        """Listen with these certificates; a client must have one of the names, if there are any.

        Raises StartError if the address cannot be bound.
        """
        self._client_names = frozenset(client_names)
        if self._site is None:
            await self._runner.setup()
        else:
            await self._site.stop()
        host, port = split_address(self.address or bind)
        try:
            listener = _Listener(self._opened, self._most_connections, host, port)
            self._site = web.SockSite(self._runner, listener, ssl_context=tls)
            await self._site.start()
        except OSError as error:
            raise StartError(f"api.bind {bind} cannot be bound: {error.strerror or error}") from error
        host, port = self._runner.addresses[-1][:2]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._only_the_api_server])
        for path, document in discovery.DOCUMENTS.items():
            application.router.add_get(path, partial(_fixed, document))
        for path in _OPEN:
            application.router.add_get(path, _well)
        application.router.add_get(f"{_BASE}/namespaces/{{namespace}}/{{metric}}", self._metric)
        return application

    @web.middleware
    async def _only_the_api_server(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """The API server has authenticated and authorised its caller; TLS has verified the API server's certificate."""
        if request.path not in _OPEN:
            name = _common_name(request.transport.get_extra_info("peercert") if request.transport else None)
            if name is None:
                return _refusal(401, "Unauthorized", "only the API server may ask, by its client certificate")
            if self._client_names and name not in self._client_names:
                return _refusal(403, "Forbidden", f"the client certificate of {name!r} is not the API server's")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _refusal(404, "NotFound", f"there is nothing at {request.path}")
        except web.HTTPMethodNotAllowed:
            return _refusal(405, "MethodNotAllowed", "metrics can be read only")

    async def _metric(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        try:
            values = await self._values(namespace, metric, request.query.get("labelSelector", ""))
        except UnknownMetric as error:
            return _refusal(404, "NotFound", str(error))
        except BadSelector as error:
            return _refusal(400, "BadRequest", str(error))
        except StaleInputError as error:
            return _refusal(503, "ServiceUnavailable", str(error))
        timestamp = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return _json(
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{discovery.GROUP}/{discovery.VERSION}",
                "metadata": {},
                "items": [_item(metric, value, timestamp) for value in values],
            }
        )

    async def _values(self, namespace: str, metric: str, selector: str) -> Sequence[Value]:
        """The figures of this release; those of another release come from its scaler, which the selector names."""
        labels = labels_of(selector)
        if namespace == self._namespace and labels.get(SCALER, self._published.scaler) == self._published.scaler:
            return self._published.query(metric, labels)
        return await ask_release(self._find, namespace, metric, labels)


class _Listener(socket):
    """asyncio accepts from it. Where too many connections are open, the oldest one gives way to a new one.

    Those in a handshake count, as they do not among aiohttp's connections.
    """

    def __init__(self, opened: list[socket], most: int, host: str, port: int) -> None:
        """Bind the address; raises OSError."""
        super().__init__(AF_INET6 if ":" in host else AF_INET)
        self._opened, self._most = opened, most
        try:
            self.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            self.bind((host, port))
        except OSError:
            self.close()
            raise

    @override
    def accept(self) -> tuple[socket, Any]:
        connection, address = super().accept()
        self._opened[:] = [each for each in self._opened if each.fileno() >= 0]
        if len(self._opened) >= self._most:
            with suppress(OSError):  # it has just ended
                self._opened.pop(0).shutdown(SHUT_RDWR)  # its transport sees the end, and closes it
        self._opened.append(connection)
        return connection, address


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


async def _fixed(document: discovery.Document, _: web.Request) -> web.Response:
    return _json(document)


async def _well(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _json(document: discovery.Document, code: int = 200) -> web.Response:
    return web.Response(text=json.dumps(document), status=code, content_type="application/json")


def _refusal(code: int, reason: str, message: str) -> web.Response:
    return _json(discovery.status(code, reason, message), code)


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
