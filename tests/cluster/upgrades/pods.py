"""What every kind of pods can be told, and where it shows in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.cluster.release import Object
from tests.cluster.upgrades.effects import Effect, among, container, variable

MIRROR, TAG = "mirror.example", "7"
COMPONENTS = {"aggregator": "aggregator", "modelServer": "model-server", "scaler": "scaler"}
PODS = {name: f"pods -l app.kubernetes.io/component={component}" for name, component in COMPONENTS.items()}
PREFERENCE = {
    "weight": 7,
    "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
}
SPREAD = {
    "maxSkew": 7,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"tier": "front"}},
}


def pods(name: str) -> Object:
    """Values that all kinds of pods take."""
    return {
        "nodeSelector": {"kubernetes.io/hostname": "node"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}},
        "topologySpreadConstraints": [SPREAD],
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "plain",
        "resources": {"requests": {"cpu": "11m", "memory": "65Mi"}, "limits": {"memory": "500Mi"}},
        "podAnnotations": {"owner": "search"},
        "podLabels": {"tier": "front"},
        "env": [{"name": "OWNER", "value": "search"}],
        "preStopSeconds": 1,
        "podSpec": {"hostAliases": [{"ip": "10.9.9.9", "hostnames": ["mine"]}]},
        "container": {"envFrom": [{"secretRef": {"name": "hub"}}]},
        "image": {"registry": MIRROR, "repository": f"embeddings/{name.lower()}", "tag": TAG},
    }


def of_pods(name: str) -> Iterator[Effect]:
    """Where they show."""
    shows = partial(Effect, of=PODS[name])
    yield shows(f"{name}.nodeSelector", shown="spec.nodeSelector")
    yield shows(f"{name}.tolerations", shown=lambda it: among(pods(name)["tolerations"], it["spec"]["tolerations"]))
    yield shows(f"{name}.affinity", shown="spec.affinity")
    yield shows(f"{name}.topologySpreadConstraints", shown="spec.topologySpreadConstraints")
    yield shows(f"{name}.priorityClassName", shown="spec.priorityClassName")
    yield shows(f"{name}.runtimeClassName", shown="spec.runtimeClassName")
    yield shows(f"{name}.resources.requests", shown="container.resources.requests.*")
    yield shows(f"{name}.resources.limits", shown="container.resources.limits.*")
    yield shows(f"{name}.podAnnotations", shown="metadata.annotations.*")
    yield shows(f"{name}.podLabels", shown="metadata.labels.*")
    yield shows(f"{name}.env", shown=lambda it: [variable(it, "OWNER")])
    yield shows(
        f"{name}.preStopSeconds",
        shown=lambda it: container(it)["lifecycle"]["preStop"]["exec"]["command"][-1],
        expected="import time; time.sleep(1)",
    )
    yield shows(f"{name}.podSpec", shown="spec.*")
    yield shows(f"{name}.container", shown="container.*")
    yield shows(f"{name}.image.registry", shown=lambda it: container(it)["image"].partition("/")[0])
    yield shows(
        f"{name}.image.repository", shown=lambda it: container(it)["image"].partition("/")[2].rpartition(":")[0]
    )
    yield shows(f"{name}.image.tag", shown=lambda it: container(it)["image"].rpartition(":")[2])
