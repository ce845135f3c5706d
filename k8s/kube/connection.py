"""Call the Kubernetes API with its official client, in threads, with a timeout at both ends of every call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, ParamSpec, TypeVar, cast

from kubernetes import client, config, watch
from kubernetes.config.incluster_config import SERVICE_HOST_ENV_NAME
from urllib3.exceptions import HTTPError

from k8s.kube.objects import KubernetesError, Object, slices_of
from k8s.pod.errors import StartError
from k8s.pod.trust import trusting

_TIMEOUT_S = 10.0  # no stop waits longer for the network
_CONNECT_S = 5.0  # a server that is there answers within a round trip
_WATCH_S = 240  # then it lists anew, which repairs a missed event
_WATCH_SILENCE_S = 90.0  # a bookmark comes every minute
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML, too
# OSError and ConfigException: the file of the token; ValueError and KeyError: an answer that is not from Kubernetes.
_FAILURES = (client.ApiException, config.ConfigException, HTTPError, OSError, ValueError, KeyError)

_P = ParamSpec("_P")
_T = TypeVar("_T")


def configuration() -> client.Configuration:
    """The service account of this pod, whose token is read again each minute, or the kubeconfig.

    Raises StartError if there is neither.
    """
    found = client.Configuration()
    try:
        if os.environ.get(SERVICE_HOST_ENV_NAME):
            config.load_incluster_config(found)
        else:
            file = os.environ.get("KUBECONFIG", config.KUBE_CONFIG_DEFAULT_LOCATION)
            config.load_kube_config(config_file=file, client_configuration=found)
    except (config.ConfigException, OSError) as error:
        raise StartError(
            f"this is not a Kubernetes pod with a service account, and has no kubeconfig ({error}): "
            "give addresses as host:port"
        ) from error
    return found


class Kubernetes:
    """An API server, used by one account. Every call raises KubernetesError.

    Objects stay JSON, so fields that this code does not know are kept: the models of the client refuse fields that are
    newer than the client, and those of the core group alone take a second to import.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.retries = False  # callers retry
        configuration.keep_alive = True
        self._client = client.ApiClient(configuration)
        if configuration.verify_ssl:
            pools: Any = self._client.rest_client.pool_manager
            pools.connection_pool_kw["ssl_context"] = trusting(configuration.ssl_ca_cert)
        self._client.user_agent = "tokenbatch"
        self._discovery = client.DiscoveryV1Api(self._client)

    async def get(self, path: str) -> Object:
        """An object, or a list; `path` may have a query."""
        return await _in_thread(self._call, "GET", path)

    async def update(self, path: str, content: Object) -> Object:
        """Replace an object; 409 when it changed since it was read."""
        return await _in_thread(self._call, "PUT", path, content)

    async def patch(self, path: str, content: Object) -> Object:
        """Merge into an object."""
        return await _in_thread(self._call, "PATCH", path, content, kind=_MERGE)

    async def create(self, path: str, content: Object) -> Object:
        return await _in_thread(self._call, "POST", path, content)

    async def apply(self, path: str, content: Object, manager: str, *, force: bool) -> Object:
        """Server-side apply: make or change an object; 409 if a field of another manager differs, unless forced."""
        query = {"fieldManager": manager, "force": str(force).lower()}
        return await _in_thread(self._call, "PATCH", path, content, kind=_APPLY, query=query)

    async def watch_endpoint_slices(self, namespace: str, service: str, version: str) -> AsyncGenerator[Object]:
        """Events of a Service's EndpointSlices after the version of a list, until the server ends the watch."""
        watched = watch.Watch(object)
        stream = watched.stream(
            self._discovery.list_namespaced_endpoint_slice,
            namespace,
            label_selector=slices_of(service),
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,  # for the server; because of it the client does not start another watch
            _request_timeout=(_CONNECT_S, _WATCH_SILENCE_S),  # for a connection that died silently
        )
        events = cast("Generator[Object]", stream)
        try:
            while (event := await _in_thread(next, events, None)) is not None:
                yield event
        finally:
            watched.stop()
            with suppress(ValueError):  # its thread still runs it, and ends when the socket is closed
                events.close()

    async def close(self) -> None:
        self._client.close()

    def _call(
        self,
        method: str,
        path: str,
        content: Object | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": kind}
        asked = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=content,
            auth_settings=["BearerToken"],
        )
        answer = self._client.call_api(*asked, _request_timeout=_TIMEOUT_S)
        text = answer.read()
        if not 200 <= answer.status <= 299:  # noqa: PLR2004 - the status codes of success
            raise client.ApiException(http_resp=answer)
        read: Object = json.loads(text)
        return read


async def _in_thread(call: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Run in a daemon thread: at exit Python would wait for a thread of asyncio. Raises KubernetesError."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        if not outcome.done():
            result()

    def run() -> None:
        try:
            found = call(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            result = partial(outcome.set_exception, error)
        else:
            result = partial(outcome.set_result, found)
        with suppress(RuntimeError):  # the loop is closed: no task waits
            loop.call_soon_threadsafe(settle, result)

    Thread(target=run, name="kubernetes", daemon=True).start()
    try:
        return await outcome
    except _FAILURES as error:
        raise _failed(error) from error


def _failed(error: Exception) -> KubernetesError:
    if not isinstance(error, client.ApiException):
        return KubernetesError(0, f"the Kubernetes API cannot be reached: {error!r}")
    if not error.status:  # TLS
        return KubernetesError(0, f"the Kubernetes API cannot be reached: {error.reason}")
    try:
        message = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        message = (error.body or error.reason or "")[:200]
    return KubernetesError(error.status, message)
