"""Render the chart against a cluster, which it looks objects up in."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.chart.rendering import Object, render, template
from tests.support.fake_kubernetes import FakeKubernetesApi

_REGISTRATION = ("apiregistration.k8s.io/v1", "APIService")
_CLUSTER_WIDE = {"APIService", "ClusterRole", "ClusterRoleBinding"}


async def upgrade(
    folder: Path, helm: int, case: str, values: str, objects: Mapping[str, Object]
) -> subprocess.CompletedProcess[str]:
    """What helm says to an upgrade with these values where these objects are there, by their paths."""
    api = _cluster(case, values)
    for path, content in objects.items():
        api.put(path, content)
    async with api.started():
        file = folder / "kubeconfig"
        content = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": api.url}}],
            "users": [{"name": "me", "user": {}}],
        }
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        arguments = ("--dry-run=server", "--disable-openapi-validation", "--kubeconfig", str(file), "--set", values)
        return await asyncio.to_thread(template, helm, case, *arguments)


def _cluster(case: str, values: str) -> FakeKubernetesApi:
    """As much of an API server as Helm asks for before it looks an object up: the kinds there are."""
    api = FakeKubernetesApi()
    groups: dict[str, Object] = {}
    kinds = {(each["apiVersion"], each["kind"]) for each in render(case, "--set", values)} | {_REGISTRATION}
    for version in {version for version, _ in kinds}:
        resources = [
            {
                "name": _plural(kind),
                "singularName": "",
                "kind": kind,
                "namespaced": kind not in _CLUSTER_WIDE,
                "verbs": ["get"],
            }
            for of, kind in kinds
            if of == version
        ]
        listed = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        api.put(f"/apis/{version}" if "/" in version else f"/api/{version}", listed)
        if "/" in version:
            served = {"groupVersion": version, "version": version.partition("/")[2]}
            groups[version] = {"name": version.partition("/")[0], "versions": [served], "preferredVersion": served}
    api.put("/apis", {"kind": "APIGroupList", "groups": list(groups.values())})
    api.put("/api", {"kind": "APIVersions", "versions": ["v1"]})
    api.put("/version", {"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
    return api


def _plural(kind: str) -> str:
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")
