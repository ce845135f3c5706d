"""The first upgrade: all values that can be told at once."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.kafka_on_node import BOOTSTRAP
from tests.cluster.release import MODEL, Object
from tests.cluster.upgrades.effects import (
    Effect,
    Stage,
    container,
    only,
    owner,
    secret,
    settings,
    variable,
    volume,
)
from tests.cluster.upgrades.pods import COMPONENTS, PODS, of_pods, pods

GPU = "example.com/gpu"
DEPLOYMENTS = {name: of.replace("pods", "deployments") for name, of in PODS.items()}
SERVER = f"pods -l tokenbatch/model={MODEL}"
HPA, FRONT_HPA = f"hpa/tokenbatch-{MODEL}", "hpa/tokenbatch-aggregator"
CLAIM = f"pvc/tokenbatch-{MODEL}-cache"
POLICY = "networkpolicy/tokenbatch-aggregator"
READS_KAFKA = ("aggregator", "scaler")


def of_kafka(name: str) -> Iterator[Effect]:
    """The broker, and Secrets for it, in the pods that reach it."""
    config, of = f"configmap/tokenbatch-{name}", PODS[name]
    yield Effect("kafka.bootstrapServers", config, "settings.kafka.bootstrap_servers")
    yield Effect("kafka.config", config, "settings.kafka.*")
    yield Effect("kafka.saslPassword", of, lambda it: secret(it, "kafka", "password"), ("kafka-user", "word"))
    yield Effect("kafka.saslToken", of, lambda it: secret(it, "kafka", "token"), ("kafka-user", "bearer"))
    yield Effect("kafka.ca", of, lambda it: secret(it, "kafka", "ca.crt"), ("kafka-ca", "ca"))
    pair = ("kafka-pair", "cert", "key")
    yield Effect("kafka.clientCertificate", of, lambda it: secret(it, "kafka", "tls.crt", "tls.key"), pair)


KAFKA: Object = {
    "bootstrapServers": f"{BOOTSTRAP},{BOOTSTRAP}",
    "config": {"client": {"session_timeout_s": 21}, "topics": [{"name": "embed.requests.v1", "model": MODEL}]},
    "saslPassword": {"secretName": "kafka-user", "key": "word"},
    "saslToken": {"secretName": "kafka-user", "key": "bearer"},
    "ca": {"secretName": "kafka-ca", "key": "ca"},
    "clientCertificate": {"secretName": "kafka-pair", "certKey": "cert", "keyKey": "key"},
}
STRIMZI: Object = {
    "enabled": True,
    "apiVersion": "v1beta2",
    "cluster": "main",
    "namespace": "strimzi",
    "user": True,
    "replicas": 3,
    "topicConfig": {"retention.ms": 3600000},
}
MODELS: list[Object] = [
    {"name": MODEL, "aliases": ["mini"], "source": {"path": "/opt/model"}},
    {
        "name": "second",
        "source": {"path": "/opt/model", "volume": {"emptyDir": {}}, "revision": "v3"},
        "gpu": {"count": 0},
        "autoscaling": {"enabled": False},
    },
    {
        "name": "third",
        "source": {"hub": "example/third", "hubToken": {"secretName": "hub", "key": "token"}},
        "replicas": 0,
        "autoscaling": {"enabled": False},
    },
]
BEHAVIOR = {"scaleDown": {"stabilizationWindowSeconds": 77}}
WINDOW = BEHAVIOR["scaleDown"]["stabilizationWindowSeconds"]
CACHE = {"persistent": True, "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "size": "1Gi"}
SURGE = {"maxSurge": 2, "maxUnavailable": "50%"}
ROUTES: Object = {
    "grpcRoute": {"parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gateway"}]},
    "httpRoute": {"hostnames": ["embed.example"]},
    "ingress": {"ingressClassName": "outer"},
}
HTTP_ROUTES: Object = {
    "httpRoute": {"hostnames": ["openai.example"]},
    "ingress": {"ingressClassName": "inner"},
}
ACCOUNTS = {"aggregator": "aggregator", "modelServer": "model-server", "scaler": "scaler"}
RULES: Object = {
    "enabled": True,
    "clients": [{"podSelector": {"matchLabels": {"may": "call"}}}],
    "httpClients": [{"podSelector": {"matchLabels": {"may": "call-http"}}}],
    "monitoring": [{"namespaceSelector": {"matchLabels": {"may": "scrape"}}}],
    "kafka": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
    "kafkaPorts": [9092, 9094],
    "kubernetesPorts": [443, 6444],
    "dnsPorts": [53, 5354],
    "kubernetes": [{"ipBlock": {"cidr": "10.3.0.0/16"}}],
    "dns": [{"ipBlock": {"cidr": "10.4.0.0/16"}}],
    "hub": [{"ipBlock": {"cidr": "10.5.0.0/16"}}],
    "models": [{"to": [{"ipBlock": {"cidr": "10.6.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
    "telemetry": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 4317, "protocol": "TCP"}]}],
}


def of_route(kind: str, values: str = "aggregator", name: str = "tokenbatch-aggregator") -> Iterator[Effect]:
    """A way in from outside."""
    of = f"{kind.lower()}/{name}"
    yield Effect(f"{values}.{kind}.annotations", of, "metadata.annotations.*")
    yield Effect(f"{values}.{kind}.spec", of, "spec.*")


def ports(rule: Object) -> list[int]:
    return [each["port"] for each in rule["ports"]]


TOPICS = "kafkatopics --namespace strimzi"
ALL = Stage(
    "what can be told to all kinds of pods",
    {
        "commonLabels": {"team": "search"},
        "image": {"pullPolicy": "IfNotPresent", "pullSecrets": [{"name": "pull"}]},
        "kafka": KAFKA,
        "strimzi": STRIMZI,
        "models": MODELS,
        "modelServer": {
            **pods("modelServer"),
            "gpu": {"count": 2, "resource": GPU},
            "autoscaling": {"minReplicas": 2, "maxReplicas": 3, "behavior": BEHAVIOR, "lagRecordsPerReplica": 500},
            "rollingUpdate": SURGE,
            "cache": CACHE,
            "sharedMemory": "64Mi",
            "startupSeconds": 300,
            "config": {"synthetic": {"fixed_s": 0.016}},
        },
        "aggregator": {
            **pods("aggregator"),
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "behavior": BEHAVIOR},
            "busyTarget": 0.5,
            "serviceType": "NodePort",
            "serviceAnnotations": {"balancer": "inner"},
            "service": {"externalTrafficPolicy": "Local"},
            **{kind: {"annotations": {"owner": "search"}, "spec": spec} for kind, spec in ROUTES.items()},
            "http": {
                "enabled": True,
                **{kind: {"annotations": {"owner": "search"}, "spec": spec} for kind, spec in HTTP_ROUTES.items()},
            },
            "startupSeconds": 60,
            "config": {"batching": {"max_held_tokens": 300_000}},
        },
        "scaler": {**pods("scaler"), "replicas": 1, "config": {"policy": {"drain_s": 21}}},
        "serviceAccounts": {
            "annotations": {"role": "reader"},
            **{name: {"identity": name} for name in ACCOUNTS},
        },
        "networkPolicy": RULES,
        "monitoring": {
            "podMonitor": True,
            "interval": "20s",
            "rules": True,
            "dashboard": True,
            "dashboardLabels": {"board": "1"},
            "labels": {"watched": "1"},
            "runbooks": "https://runbooks.example/tokenbatch",
        },
    },
    (
        *(effect for name in COMPONENTS for effect in of_pods(name)),
        *(effect for name in READS_KAFKA for effect in of_kafka(name)),
        *(Effect("image.pullPolicy", of, "container.imagePullPolicy") for of in PODS.values()),
        *(Effect("image.pullSecrets", of, "spec.imagePullSecrets") for of in PODS.values()),
        Effect("commonLabels", "deployments", "metadata.labels.*"),
        Effect("strimzi.enabled", TOPICS, "kind", "KafkaTopic"),
        Effect("strimzi.apiVersion", TOPICS, owner, "kafka.strimzi.io/v1beta2"),
        Effect("strimzi.cluster", TOPICS, lambda it: it["metadata"]["labels"]["strimzi.io/cluster"]),
        Effect("strimzi.namespace", TOPICS, "metadata.namespace"),
        Effect("strimzi.user", "kafkausers --namespace strimzi", "metadata.name", "tokenbatch"),
        Effect("strimzi.replicas", TOPICS, "spec.replicas"),
        Effect("strimzi.topicConfig", TOPICS, "spec.config.*"),
        Effect("models.1.name", "configmap/tokenbatch-second", "settings.model.name"),
        Effect("models.1.source.path", "configmap/tokenbatch-second", "settings.model.path"),
        Effect("models.1.source.revision", "configmap/tokenbatch-second", "settings.model.revision"),
        Effect("models.1.source.volume", "pods -l tokenbatch/model=second", lambda it: volume(it, "models")),
        Effect("models.2.source.hub", "configmap/tokenbatch-third", "settings.model.path"),
        Effect(
            "models.2.source.hubToken",
            "deployment/tokenbatch-third",
            lambda it: variable(it, "HF_TOKEN")["valueFrom"]["secretKeyRef"],
            {"name": "hub", "key": "token"},
        ),
        Effect("models.0.aliases", "configmap/tokenbatch-aggregator", "settings.models.0.aliases"),
        Effect("modelServer.gpu.count", SERVER, lambda it: int(container(it)["resources"]["limits"][GPU])),
        Effect("modelServer.gpu.resource", SERVER, lambda it: min(container(it)["resources"]["limits"])),
        Effect("modelServer.autoscaling.minReplicas", HPA, "spec.minReplicas"),
        Effect("modelServer.autoscaling.maxReplicas", HPA, "spec.maxReplicas"),
        Effect("modelServer.autoscaling.behavior", HPA, "spec.behavior.scaleDown.stabilizationWindowSeconds", WINDOW),
        Effect(
            "modelServer.autoscaling.lagRecordsPerReplica", HPA, "spec.metrics.1.external.target.averageValue", "500"
        ),
        Effect(
            "modelServer.rollingUpdate.maxSurge", DEPLOYMENTS["modelServer"], "spec.strategy.rollingUpdate.maxSurge"
        ),
        Effect(
            "modelServer.rollingUpdate.maxUnavailable",
            DEPLOYMENTS["modelServer"],
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
        Effect("modelServer.cache.persistent", SERVER, lambda it: "persistentVolumeClaim" in volume(it, "cache")),
        Effect("modelServer.cache.storageClassName", CLAIM, "spec.storageClassName"),
        Effect("modelServer.cache.accessModes", CLAIM, "spec.accessModes"),
        Effect("modelServer.cache.size", CLAIM, "spec.resources.requests.storage"),
        Effect("modelServer.sharedMemory", SERVER, lambda it: volume(it, "shared-memory")["emptyDir"]["sizeLimit"]),
        Effect("modelServer.startupSeconds", SERVER, "container.startupProbe.failureThreshold", 60),
        Effect(
            "modelServer.config",
            f"configmap/tokenbatch-{MODEL}",
            lambda it: {"synthetic": only(["fixed_s"], settings(it)["synthetic"])},
        ),
        Effect("aggregator.autoscaling.minReplicas", FRONT_HPA, "spec.minReplicas"),
        Effect("aggregator.autoscaling.maxReplicas", FRONT_HPA, "spec.maxReplicas"),
        Effect(
            "aggregator.autoscaling.behavior", FRONT_HPA, "spec.behavior.scaleDown.stabilizationWindowSeconds", WINDOW
        ),
        Effect("aggregator.busyTarget", FRONT_HPA, "spec.metrics.0.external.target.averageValue", "500m"),
        Effect("aggregator.serviceType", "service/tokenbatch-aggregator", "spec.type"),
        Effect("aggregator.serviceAnnotations", "service/tokenbatch-aggregator", "metadata.annotations.*"),
        Effect("aggregator.startupSeconds", PODS["aggregator"], "container.startupProbe.failureThreshold", 12),
        Effect(
            "aggregator.config",
            "configmap/tokenbatch-aggregator",
            lambda it: {"batching": only(["max_held_tokens"], settings(it)["batching"])},
        ),
        Effect("scaler.replicas", DEPLOYMENTS["scaler"], "status.readyReplicas"),
        Effect(
            "scaler.config",
            "configmap/tokenbatch-scaler",
            lambda it: {"policy": only(["drain_s"], settings(it)["policy"])},
        ),
        Effect(
            "serviceAccounts.annotations",
            "serviceaccounts -l app.kubernetes.io/instance=tokenbatch",
            "metadata.annotations.*",
        ),
        Effect("aggregator.service", "service/tokenbatch-aggregator", "spec.*"),
        *(effect for kind in ROUTES for effect in of_route(kind)),
        *(effect for kind in HTTP_ROUTES for effect in of_route(kind, "aggregator.http", "tokenbatch-aggregator-http")),
        Effect(
            "aggregator.http.enabled",
            "service/tokenbatch-aggregator",
            lambda it: "http" in [each["name"] for each in it["spec"]["ports"]],
        ),
        *(
            Effect(f"serviceAccounts.{name}", of, "metadata.annotations.*")
            for name, of in ((name, f"serviceaccount/tokenbatch-{account}") for name, account in ACCOUNTS.items())
        ),
        Effect("networkPolicy.kubernetes", POLICY, "spec.egress.2.to"),
        Effect("networkPolicy.dns", "networkpolicy/tokenbatch-dns", "spec.egress.0.to"),
        Effect("networkPolicy.hub", "networkpolicy/tokenbatch-third-hub", "spec.egress.0.to"),
        Effect("networkPolicy.models", "networkpolicy/tokenbatch-model-server", "spec.egress"),
        Effect("networkPolicy.clients", POLICY, "spec.ingress.0.from"),
        Effect("networkPolicy.httpClients", POLICY, "spec.ingress.1.from"),
        Effect("networkPolicy.monitoring", POLICY, "spec.ingress.2.from"),
        Effect("networkPolicy.kafka", POLICY, "spec.egress.1.to"),
        Effect("networkPolicy.kafkaPorts", POLICY, lambda it: ports(it["spec"]["egress"][1])),
        Effect("networkPolicy.kubernetesPorts", POLICY, lambda it: ports(it["spec"]["egress"][2])),
        Effect(
            "networkPolicy.dnsPorts",
            "networkpolicy/tokenbatch-dns",
            lambda it: ports(it["spec"]["egress"][0]),
            [53, 53, 5354, 5354],  # each by UDP and by TCP
        ),
        Effect("networkPolicy.telemetry", "networkpolicy/tokenbatch-dns", lambda it: it["spec"]["egress"][1:]),
        Effect("monitoring.podMonitor", "podmonitors", lambda it: it["kind"] == "PodMonitor"),
        Effect("monitoring.interval", "podmonitors", "spec.podMetricsEndpoints.0.interval"),
        Effect("monitoring.labels", "podmonitors", "metadata.labels.*"),
        Effect("monitoring.rules", "prometheusrules", lambda it: it["kind"] == "PrometheusRule"),
        Effect(
            "monitoring.runbooks",
            "prometheusrules",
            lambda it: it["spec"]["groups"][0]["rules"][0]["annotations"]["runbook_url"].partition("#")[0],
        ),
        Effect("monitoring.dashboard", "configmap/tokenbatch-dashboard", lambda it: "tokenbatch.json" in it["data"]),
        Effect("monitoring.dashboardLabels", "configmap/tokenbatch-dashboard", "metadata.labels.*"),
    ),
)
