"""Follow the endpoints of a Service: list, watch, list again. During an outage the last answer stays valid."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s.kube.objects import KubernetesError, Object, slices_of
from k8s.pod.addresses import split_server
from k8s.pod.errors import StartError

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)
SCHEME = "k8s://"
_ADDRESS = re.compile(r"k8s://(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+):\d+")
_FIRST_DELAY_S = 0.2  # one error is no outage
_LONGEST_DELAY_S = 5.0  # new pods wait for it after an outage
_GONE = 410  # the version of the list is too old: list again


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """All pods behind a Service, at one of their ports."""

    service: str
    namespace: str
    port: int

    @staticmethod
    def parse(address: str) -> ServiceAddress:
        """Read k8s://SERVICE.NAMESPACE:PORT. Raises StartError."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise StartError(f"{address!r} is not k8s://SERVICE.NAMESPACE:PORT")
        _, port = split_server(address.removeprefix(SCHEME))
        return ServiceAddress(match["service"], match["namespace"], port)


async def check_access(address: ServiceAddress, setting: str) -> None:
    """Raises StartError where the endpoints cannot be listed: no API server, no right, no such Service."""
    from k8s.kube.client import connect  # noqa: PLC0415 - Kubernetes' client, which most processes do without

    try:
        kubernetes = connect()
    except StartError as error:
        raise StartError(f"{setting}: {error}") from None
    try:
        listed = await kubernetes.get(f"{_path(address)}?labelSelector={slices_of(address.service)}")
    except KubernetesError as error:
        raise StartError(f"{setting}: the endpoints of {address.service}.{address.namespace}: {error}") from None
    finally:
        await kubernetes.close()
    if not listed.get("items"):
        raise StartError(f"{setting}: Service {address.service} of namespace {address.namespace} has no endpoints")


def _path(address: ServiceAddress) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{address.namespace}/endpointslices"


async def endpoints(kubernetes: Kubernetes, address: ServiceAddress) -> AsyncGenerator[frozenset[str]]:
    """Yield `host:port` of every endpoint that takes new work, whenever that changes; never ends.

    These are the ready endpoints, or all if the Service publishes unready ones, but none that is terminating. If no
    endpoint is ready any more, all that were ready before and are still listed are yielded: probably the node lost its
    heartbeat, and the user of the addresses checks the health of each anyway.
    """
    known: frozenset[str] | None = None
    proven: frozenset[str] = frozenset()
    async with aclosing(_followed(kubernetes, address)) as answers:
        async for pieces in answers:
            ready = frozenset(each for piece in pieces for each in addresses(piece, address.port))
            listed = {each for piece in pieces for each in addresses(piece, address.port, unready=True)}
            proven = (proven & listed) | ready
            found = ready or proven
            if found != known:
                known = found
                yield found


async def serving(kubernetes: Kubernetes, address: ServiceAddress) -> AsyncGenerator[Mapping[str, bool]]:
    """Yield whether the pod is Ready, by `host:port` of every endpoint that is not terminating; never ends.

    Unlike `endpoints`, this shows the difference if the Service publishes unready endpoints.
    """
    async with aclosing(_followed(kubernetes, address)) as answers:
        async for pieces in answers:
            ready = {each for piece in pieces for each in addresses(piece, address.port, condition="serving")}
            listed = {each for piece in pieces for each in addresses(piece, address.port, unready=True)}
            yield {each: each in ready for each in listed}


async def _followed(kubernetes: Kubernetes, address: ServiceAddress) -> AsyncGenerator[Collection[Object]]:
    """Yield the slices after each change; retry what fails."""
    tries = 0
    while True:
        try:
            async with aclosing(_slices(kubernetes, address)) as answers:
                async for slices in answers:
                    tries = 0
                    yield slices.values()
        except KubernetesError as error:
            if error.status == _GONE:
                continue
            _LOG.warning("endpoints cannot be watched", extra={"service": address.service, "error": str(error)})
            tries += 1
            delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(tries, 10))
            await asyncio.sleep(delay_s * (0.5 + random.random()))  # noqa: S311 - jitter


async def _slices(kubernetes: Kubernetes, address: ServiceAddress) -> AsyncGenerator[dict[str, Object]]:
    """Yield the slices by name, first as listed, then after each change; ends when the server ends the watch."""
    service = address.namespace, address.service
    path = _path(address)
    listed = await kubernetes.get(f"{path}?labelSelector={slices_of(address.service)}")
    slices: dict[str, Object] = {each["metadata"]["name"]: each for each in listed.get("items") or ()}
    yield slices
    version = listed["metadata"]["resourceVersion"]
    async with aclosing(kubernetes.watch_endpoint_slices(*service, version)) as events:
        async for event in events:
            name = event["object"]["metadata"].get("name", "")
            if event["type"] == "DELETED":
                slices.pop(name, None)
            elif event["type"] in {"ADDED", "MODIFIED"}:
                slices[name] = event["object"]
            yield slices


def addresses(piece: Object, port: int, *, unready: bool = False, condition: str = "ready") -> Iterator[str]:
    """`host:port` of the endpoints of one slice that take new work, or with `unready` of all that do not terminate.

    `condition` is "ready", or "serving", which stays false if the Service publishes unready endpoints.
    """
    for endpoint in piece.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if conditions.get("terminating") or (conditions.get(condition) is False and not unready):
            continue
        for host in endpoint.get("addresses") or ():
            yield f"[{host}]:{port}" if piece.get("addressType") == "IPv6" else f"{host}:{port}"
