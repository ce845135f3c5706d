"""All upgrades, one after the other; those behind the first undo what shut others out."""

from __future__ import annotations

from functools import partial

from tests.cluster.images import AGGREGATOR, SYNTHETIC
from tests.cluster.release import METRICS_API, MODEL, Object, give_metrics_api, kube
from tests.cluster.upgrades.effects import (
    GONE,
    Effect,
    Stage,
    container,
    secret,
    volume,
)
from tests.cluster.upgrades.everything import ALL, DEPLOYMENTS, FRONT_HPA, HPA, SERVER, ports
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
        Effect("modelServer.autoscaling.enabled", HPA, "kind", GONE),
        Effect("modelServer.replicas", f"deployment/tokenbatch-{MODEL}", "spec.replicas"),
        Effect(
            "modelServer.cache.existingClaim",
            SERVER,
            lambda it: volume(it, "cache")["persistentVolumeClaim"]["claimName"],
        ),
        Effect("aggregator.autoscaling.enabled", FRONT_HPA, "kind", GONE),
        Effect("aggregator.replicas", DEPLOYMENTS["aggregator"], "spec.replicas"),
        *(
            Effect(f"{name}.image.digest", of, lambda it: container(it)["image"].partition("@")[2])
            for name, of in PODS.items()
        ),
        Effect("networkPolicy.enabled", "networkpolicy/tokenbatch-deny", "kind", GONE),
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
        Effect("fullnameOverride", DEPLOYMENTS["aggregator"], "metadata.name", "embed-aggregator"),
        *(Effect("image.registry", of, lambda it: container(it)["image"].partition("/")[0]) for of in PODS.values()),
        Effect("autoscaling.mode", SCALED, "spec.triggers.0.type", "external-push"),
        Effect("modelServer.autoscaling.keda", SCALED, "spec.*"),
        Effect("aggregator.autoscaling.keda", "scaledobject/embed-aggregator", "spec.*"),
        Effect("autoscaling.mode", "clusterroles -l app.kubernetes.io/instance=tokenbatch", "kind", GONE),
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
        Effect("autoscaling.mode", DEPLOYMENTS["scaler"], "kind", GONE),
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


OF_REDIS: Object = {
    "enabled": True,
    "servers": "redis.elsewhere:6379",
    "config": {"group_id": "readers"},
    "password": {"secretName": "redis-user", "key": "word"},
    "ca": {"secretName": "redis-ca", "key": "ca"},
    "clientCertificate": {"secretName": "redis-pair", "certKey": "cert", "keyKey": "key"},
}
READS, POLICY = "configmap/tokenbatch-vectors-aggregator", "networkpolicy/tokenbatch-vectors-aggregator"


def _secret_of_redis(paths: tuple[str, ...], it: Object) -> tuple[str, ...]:
    return secret(it, "redis", *paths)


ELSEWHERE = Stage(
    "with certificates and rights that others make, and a Redis in the place of Kafka",
    {
        "kafka": {"enabled": False},
        "autoscaling": {"mode": "hpa"},
        "scaler": {"certificates": {"certManager": True, "issuerRef": {"name": "house", "kind": "ClusterIssuer"}}},
        "serviceAccounts": {"create": False},
        "redis": OF_REDIS,
        "networkPolicy": {"redis": [{"ipBlock": {"cidr": "10.7.0.0/16"}}], "redisPorts": [6380]},
    },
    (
        Effect("kafka.enabled", READS, "settings.kafka.enabled"),
        Effect("redis.enabled", READS, "settings.redis.enabled"),
        Effect("redis.servers", READS, "settings.redis.servers"),
        Effect("redis.config", READS, "settings.redis.*"),
        *(
            Effect(f"redis.{value}", DEPLOYMENTS["aggregator"], partial(_secret_of_redis, paths), given)
            for value, paths, given in (
                ("password", ("password",), ("redis-user", "word")),
                ("ca", ("ca.crt",), ("redis-ca", "ca")),
                ("clientCertificate", ("tls.crt", "tls.key"), ("redis-pair", "cert", "key")),
            )
        ),
        Effect("networkPolicy.redis", POLICY, "spec.egress.1.to"),
        Effect("networkPolicy.redisPorts", POLICY, lambda it: ports(it["spec"]["egress"][1])),
        Effect("scaler.certificates.certManager", "certificates", "spec.secretName", "tokenbatch-vectors-scaler-tls"),
        Effect("scaler.certificates.issuerRef", "certificates", "spec.issuerRef"),
        Effect(
            "serviceAccounts.create",
            "serviceaccounts,roles,rolebindings -l app.kubernetes.io/instance=tokenbatch",
            "kind",
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
