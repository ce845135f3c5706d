"""All upgrades, one after the other; those behind the first undo what shut others out."""

from __future__ import annotations

from tests.cluster.images import AGGREGATOR, SYNTHETIC
from tests.cluster.release import METRICS_API, MODEL, give_metrics_api, kube
from tests.cluster.upgrades.effects import (
    GONE,
    Effect,
    Stage,
    container,
    only,
    secret,
    volume,
)
from tests.cluster.upgrades.everything import ALL, DEPLOYMENTS, FRONT_HPA, HPA, SERVER
from tests.cluster.upgrades.pods import PODS

OTHER = "other.example"
DIGEST = "sha256:" + "7" * 64
SOURCES = {"aggregator": AGGREGATOR, "modelServer": SYNTHETIC, "scaler": AGGREGATOR}
SCALED = f"scaledobject/embed-{MODEL}"
FIXED = Stage(
    "so many pods, and no more",
    {
        "modelServer": {
            "autoscaling": {"enabled": False},
            "replicas": 1,
            "image": {"digest": DIGEST},
            "cache": {"existingClaim": "kept"},
        },
        "aggregator": {"autoscaling": {"enabled": False}, "replicas": 3, "image": {"digest": DIGEST}},
        "scaler": {"image": {"digest": DIGEST}},
        "networkPolicy": {"enabled": False},
        "monitoring": {"podMonitor": False, "serviceMonitor": True},
    },
    (
        Effect("modelServer.autoscaling.enabled", HPA, lambda it: it["kind"], GONE),
        Effect("modelServer.replicas", f"deployment/tokenbatch-{MODEL}", lambda it: it["spec"]["replicas"]),
        Effect(
            "modelServer.cache.existingClaim",
            SERVER,
            lambda it: volume(it, "cache")["persistentVolumeClaim"]["claimName"],
        ),
        Effect("aggregator.autoscaling.enabled", FRONT_HPA, lambda it: it["kind"], GONE),
        Effect("aggregator.replicas", DEPLOYMENTS["aggregator"], lambda it: it["spec"]["replicas"]),
        *(
            Effect(f"{name}.image.digest", of, lambda it: container(it)["image"].partition("@")[2])
            for name, of in PODS.items()
        ),
        Effect("networkPolicy.enabled", "networkpolicy/tokenbatch-deny", lambda it: it["kind"], GONE),
        Effect("monitoring.serviceMonitor", "servicemonitors", lambda it: it["kind"] == "ServiceMonitor"),
    ),
    unscaled=True,
)
KEDA = Stage(
    "under other names, scaled by KEDA",
    {
        "fullnameOverride": "embed",
        "image": {"registry": OTHER},
        "networkPolicy": {"enabled": True},
        "autoscaling": {"mode": "keda", "kedaNamespace": "scalers"},
        "modelServer": {
            "autoscaling": {"enabled": True, "keda": {"cooldownPeriod": 123}},
            "image": {"registry": ""},
        },
        "aggregator": {
            "autoscaling": {"enabled": True, "keda": {"pollingInterval": 12}},
            "image": {"registry": ""},
        },
        "scaler": {"image": {"registry": ""}},
    },
    (
        Effect("fullnameOverride", DEPLOYMENTS["aggregator"], lambda it: it["metadata"]["name"], "embed-aggregator"),
        *(Effect("image.registry", of, lambda it: container(it)["image"].partition("/")[0]) for of in PODS.values()),
        Effect("autoscaling.mode", SCALED, lambda it: it["spec"]["triggers"][0]["type"], "external-push"),
        Effect("modelServer.autoscaling.keda", SCALED, lambda it: only(["cooldownPeriod"], it["spec"])),
        Effect(
            "aggregator.autoscaling.keda",
            "scaledobject/embed-aggregator",
            lambda it: only(["pollingInterval"], it["spec"]),
        ),
        Effect(
            "autoscaling.mode", "clusterroles -l app.kubernetes.io/instance=tokenbatch", lambda it: it["kind"], GONE
        ),
        Effect(
            "autoscaling.kedaNamespace",
            "networkpolicy/embed-scaler",
            lambda it: it["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"][
                "kubernetes.io/metadata.name"
            ],
        ),
    ),
    prepare=lambda: give_metrics_api("scalers", "keda-operator-metrics-apiserver"),
)
DOOR = Stage(
    "behind a door of its own, scaled by nobody",
    {
        "fullnameOverride": "",
        "nameOverride": "vectors",
        "autoscaling": {"mode": "none"},
        "aggregator": {
            "frontDoor": {
                "tls": {"secretName": "door", "certKey": "cert", "keyKey": "key"},
                "clientCa": {"secretName": "door", "key": "ca"},
                "tokens": {"secretName": "callers", "key": "list"},
                "jwks": {"secretName": "callers", "key": "keys"},
            }
        },
    },
    (
        Effect(
            "nameOverride",
            DEPLOYMENTS["aggregator"],
            lambda it: it["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"],
        ),
        Effect("autoscaling.mode", DEPLOYMENTS["scaler"], lambda it: it["kind"], GONE),
        Effect(
            "aggregator.frontDoor.tls",
            PODS["aggregator"],
            lambda it: secret(it, "grpc", "tls.crt", "tls.key"),
            ("door", "cert", "key"),
        ),
        Effect(
            "aggregator.frontDoor.clientCa",
            PODS["aggregator"],
            lambda it: secret(it, "grpc", "client-ca.crt"),
            ("door", "ca"),
        ),
        Effect(
            "aggregator.frontDoor.tokens",
            PODS["aggregator"],
            lambda it: secret(it, "grpc", "tokens"),
            ("callers", "list"),
        ),
        Effect(
            "aggregator.frontDoor.jwks",
            PODS["aggregator"],
            lambda it: secret(it, "grpc", "jwks.json"),
            ("callers", "keys"),
        ),
    ),
)


def _forget_the_metrics_api() -> None:
    kube("delete", "apiservice", METRICS_API)


ELSEWHERE = Stage(
    "with certificates and rights that others make",
    {
        "autoscaling": {"mode": "hpa"},
        "scaler": {"certificates": {"certManager": True, "issuerRef": {"name": "house", "kind": "ClusterIssuer"}}},
        "serviceAccounts": {"create": False},
    },
    (
        Effect(
            "scaler.certificates.certManager",
            "certificates",
            lambda it: it["spec"]["secretName"],
            "tokenbatch-vectors-scaler-tls",
        ),
        Effect("scaler.certificates.issuerRef", "certificates", lambda it: it["spec"]["issuerRef"]),
        Effect(
            "serviceAccounts.create",
            "serviceaccounts,roles,rolebindings -l app.kubernetes.io/instance=tokenbatch",
            lambda it: it["kind"],
            GONE,
        ),
    ),
    cannot_run=True,
    prepare=_forget_the_metrics_api,
)
STAGES = (ALL, FIXED, KEDA, DOOR, ELSEWHERE)


def set_by(stage: Stage) -> set[str]:
    """The values whose effect a stage shows, by their names in values.yaml: models.aliases for models.0.aliases."""
    return {".".join(name for name in each.value.split(".") if not name.isdigit()) for each in stage.effects}
