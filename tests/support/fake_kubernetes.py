"""A Kubernetes API server in this process: objects, resource versions, conflicts, watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration

from k8s.kube.connection import Kubernetes

Object = dict[str, Any]
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


class FakeKubernetesApi:
    """Objects by their path. `away` makes it refuse connections' requests, `expire` makes watches too old."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.calls: list[str] = []
        self.authorization = ""
        self.away = False
        self.queries: dict[str, str] = {}
        self.lists = 0
        self._managers: dict[str, str] = {}
        self._version = 100
        self._port = 0
        self._watches: list[tuple[str, asyncio.Queue[Object | None]]] = []
        self._history: list[tuple[int, str, Object]] = []

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[Kubernetes]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        kubernetes = self.client()
        try:
            yield kubernetes
        finally:
            await kubernetes.close()
            self.end_watches()
            await runner.cleanup()

    def client(self) -> Kubernetes:
        return Kubernetes(Configuration(self.url, proxy=""))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def put(self, path: str, content: Object) -> None:
        self._version += 1
        existed = path in self.objects
        content.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        content["metadata"].setdefault("name", path.rpartition("/")[2])
        self.objects[path] = content
        self._tell(path, "MODIFIED" if existed else "ADDED", content)

    def delete(self, path: str) -> None:
        self._version += 1
        self._tell(path, "DELETED", self.objects.pop(path))

    def end_watches(self) -> None:
        """As a server does after some minutes."""
        for _, events in self._watches:
            events.put_nowait(None)
        self._watches = []

    def expire(self) -> None:
        """Say that the resource version is too old."""
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        gone = {"type": "ERROR", "object": status}
        for _, events in self._watches:
            events.put_nowait(gone)
        self._watches = []

    def _tell(self, path: str, kind: str, content: Object) -> None:
        event = {"type": kind, "object": content}
        self._history.append((self._version, path, event))
        for prefix, events in self._watches:
            if path.startswith(prefix + "/"):
                events.put_nowait(event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        self.queries = dict(request.query)
        self.authorization = request.headers.get("Authorization", "")
        if self.away:
            return _status(503, "the API server is away")
        if request.query.get("watch"):
            return await self._watch(request)
        if request.method == "GET" and request.path not in self.objects and request.path.endswith("endpointslices"):
            self.lists += 1
            found = [each for path, each in self.objects.items() if path.startswith(request.path + "/")]
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": found})
        if request.method == "POST":
            return self._create(request.path, await request.json())
        if request.method == "PATCH" and request.content_type == "application/apply-patch+yaml":
            return self._apply(request.path, request.query, await request.json())
        content = await request.json() if request.method in {"PUT", "PATCH"} else {}  # others may write meanwhile
        stored = self.objects.get(request.path)
        if stored is None:
            return _status(404, f"{request.path} not found")
        if request.method == "PUT":
            return self._replace(request.path, stored, content)
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                return _status(415, "this fake merges, and knows no other patch")
            self.put(request.path, _merged(stored, content))
        return web.json_response(self.objects[request.path])

    def _create(self, path: str, content: Object) -> web.Response:
        name = f"{content['metadata'].get('generateName', '')}{self._version}"
        self.put(f"{path}/{content['metadata'].setdefault('name', name)}", content)
        return web.json_response(content, status=201)

    def _apply(self, path: str, query: Mapping[str, str], content: Object) -> web.Response:
        """A field that is another manager's, and differs, is a conflict, as long as it is not taken by force."""
        stored, manager = self.objects.get(path), query["fieldManager"]
        version = content["metadata"].get("resourceVersion")
        if version is not None and (stored is None or version != stored["metadata"]["resourceVersion"]):
            return _status(409, "the object has been modified")
        if stored is not None and query["force"] != "true" and self._managers.get(path) != manager:
            merged = _merged(stored, content)
            if any(merged[key] != stored.get(key) for key in content if key != "metadata"):
                return _status(409, f"conflict with {self._managers.get(path)}")
        self._managers[path] = manager
        self.put(path, _merged(stored or {}, content))
        return web.json_response(self.objects[path])

    def _replace(self, path: str, stored: Object, content: Object) -> web.Response:
        if content["metadata"].get("resourceVersion") != stored["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        self.put(path, content)
        return web.json_response(self.objects[path])

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        events: asyncio.Queue[Object | None] = asyncio.Queue()
        for version, path, missed in self._history:
            if version > int(request.query["resourceVersion"]) and path.startswith(request.path + "/"):
                events.put_nowait(missed)
        self._watches.append((request.path, events))
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await events.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
            if event["type"] == "ERROR":
                break
        return response


def slice_of(*hosts: str, name: str = "one", **conditions: bool) -> Object:
    """An EndpointSlice of these hosts, all in the same condition."""
    return {
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True, **conditions}} for host in hosts],
    }


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def _merged(stored: Object, change: Object) -> Object:
    merged = dict(stored)
    for key, value in change.items():
        inner = stored.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
