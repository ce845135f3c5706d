"""Talk to the Kubernetes API: a handful of calls, each with time-outs on both ends."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from aggregator.errors import StartError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = aiohttp.ClientTimeout(total=10.0, connect=5.0)
_WATCH_S = 240
_WATCH_SILENCE_S = 300.0
_MAX_EVENT_BYTES = 16 * 1024 * 1024

Object = dict[str, Any]


class KubernetesError(Exception):
    """The API refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class Kubernetes:
    """One API server, as one account."""

    def __init__(self, url: str, *, token_file: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._token_file = token_file
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @staticmethod
    def of_this_pod() -> Kubernetes:
        """As the pod's own service account. Raises StartError outside of a cluster."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (_ACCOUNT / "token").exists():
            raise StartError("this is no pod of Kubernetes with a service account: give addresses as host:port")
        tls = ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")
        return Kubernetes(
            f"https://{f'[{host}]' if ':' in host else host}:{port}", token_file=_ACCOUNT / "token", tls=tls
        )

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """One object, or a list of them. Raises KubernetesError."""
        return await self._call("GET", path, params=params)

    async def update(self, path: str, content: Object) -> Object:
        """Replace an object; 409 when it changed since it was read. Raises KubernetesError."""
        return await self._call("PUT", path, content=content)

    async def patch(self, path: str, content: Object) -> Object:
        """Merge into an object. Raises KubernetesError."""
        return await self._call("PATCH", path, content=content, kind="application/merge-patch+json")

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Object]:
        """Events after a resource version, until the server ends it after some minutes. Raises KubernetesError."""
        asked = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        timeout = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=_WATCH_SILENCE_S)
        try:
            async with self._opened().get(
                self._url + path, params=asked, headers=self._headers(), ssl=self._tls or True, timeout=timeout
            ) as response:
                await _raise_for(response)
                async for line in response.content:
                    event: Object = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise KubernetesError(int(status.get("code", 500)), str(status.get("message", "")))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise KubernetesError(0, f"the Kubernetes API cannot be reached: {error!r}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        data = None if content is None else json.dumps(content).encode()
        headers = self._headers() | ({"Content-Type": kind} if data is not None else {})
        try:
            async with self._opened().request(
                method,
                self._url + path,
                params=params,
                data=data,
                headers=headers,
                ssl=self._tls or True,
                timeout=_TIMEOUT,
            ) as response:
                await _raise_for(response)
                answer: Object = await response.json(content_type=None)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise KubernetesError(0, f"the Kubernetes API cannot be reached: {error!r}") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(read_bufsize=_MAX_EVENT_BYTES)
        return self._session

    def _headers(self) -> dict[str, str]:
        """The token is read anew: the kubelet renews it."""
        headers = {"Accept": "application/json", "User-Agent": "tokenbatch"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return headers


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:  # noqa: PLR2004 - where HTTP's errors begin
        text = await response.text()
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:200]
        raise KubernetesError(response.status, message)


def this_namespace() -> str:
    """The namespace of this pod. Raises StartError outside of a cluster."""
    try:
        return (_ACCOUNT / "namespace").read_text().strip()
    except OSError as error:
        raise StartError("this is no pod of Kubernetes: set the namespace") from error
