"""Wrong values are refused with a line that says which; changed ones reach what they are for, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import CHART, Object, find, render, template

TLS = "aggregator.frontDoor.tls.secretName=front"
NAMED = "networkPolicy.clients[0].podSelector.matchLabels.may=call"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("kafka.bootstrapServer=x", "bootstrapServer"),
        ("aggregator.config.batching.token_bugdet=3", "token_bugdet"),
        ("aggregator.config.batching.token_budget=-1", "token_budget"),
        ("modelServer.config.engine.kind=fast", "kind"),
        ("scaler.config.policy.utilisation=1.5", "utilisation"),
        ("kafka.config.bootstrap_servers=x", "bootstrap_servers"),
        ("aggregator.config.grpc.bind=x", "bind"),
        ("autoscaling.mode=vpa", "mode"),
        ("models=null", "models"),
        ("models[0].names=x", "names"),
        ("modelServer.gpu.count=-1", "count"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("modelServer.rollingUpdate.maxSurge=half", "maxSurge"),
        ("aggregator.replicas=two", "replicas"),
        ("modelServer.resources.limits.memory=16Gb", "memory"),
        ("modelServer.cache.size=20GB", "size"),
        ("models[0].name=模型", "name"),
    ],
)
def test_the_schema_refuses(values: str, says: str, version: int) -> None:
    done = template(version, "default", "--set", values)
    assert done.returncode != 0
    assert says in done.stderr
    assert "schema" in done.stderr


@pytest.mark.parametrize(
    ("case", "values", "says"),
    [
        ("default", "kafka.bootstrapServers=", "kafka.bootstrapServers must be set: host:port of your Kafka"),
        ("default", "aggregator.autoscaling.maxReplicas=9", "above kafka.config.partitions 8"),
        ("default", "kafka.enabled=false,strimzi.enabled=true", "makes topics, which nobody reads"),
        ("default", "modelServer.autoscaling.minReplicas=0", "possible with autoscaling.mode keda only"),
        (
            "default",
            "modelServer.autoscaling.minReplicas=9",
            "all-minilm-l6-v2 has autoscaling.minReplicas 9 above maxReplicas 8",
        ),
        (
            "default",
            "aggregator.autoscaling.minReplicas=9",
            "aggregator has autoscaling.minReplicas 9 above maxReplicas 8",
        ),
        (
            "keda",
            "aggregator.autoscaling.minReplicas=9",
            "aggregator has autoscaling.minReplicas 9 above maxReplicas 8",
        ),
        ("default", "kafka.config.group_id=\x9b", "kafka: a string in it has a character that YAML cannot hold"),
        ("default", "commonLabels.a=\x80", "commonLabels: a string in it has a character that"),
        ("default", "models[0].name=m,models[0].source.hub=a\x85", "models: a string in it has a character that"),
        ("default", "kafka.bootstrapServers=k:", "kafka.bootstrapServers: k: is not host:port"),
        ("default", "kafka.bootstrapServers=k:0", "kafka.bootstrapServers: k:0 is not host:port"),
        ("default", "kafka.bootstrapServers=k:99999", "kafka.bootstrapServers: k:99999 is not host:port"),
        ("default", "kafka.bootstrapServers=http://k:9092", "http://k:9092 is not host:port"),
        ("default", "redis.enabled=true,redis.servers=r", "redis.servers: r is not host:port"),
        (
            "default",
            "commonLabels.app\\.kubernetes\\.io/name=x",
            "app.kubernetes.io/name: x is given, but objects are selected",
        ),
        ("default", "aggregator.podLabels.app\\.kubernetes\\.io/component=x", "io/component: x is given"),
        ("default", "modelServer.podLabels.tokenbatch/model=x", "tokenbatch/model: x is given"),
        ("default", "fullnameOverride=1a", "objects would be called 1a, which no Service may be called"),
        ("keda", "aggregator.autoscaling.minReplicas=0", "without aggregators nobody notices demand"),
        ("default", "models[0].name=m,models[0].source.hub=a/b,models[0].source.path=/c", "give one"),
        ("default", "models[0].name=a.b,models[1].name=A/B", "too alike"),
        ("default", "models[0].name=aggregator", "aggregator and the chart's own aggregator are too alike"),
        ("default", "models[0].name=Aggregator.Pods", "the chart's own aggregator-pods are too alike"),
        ("default", "models[0].name=scaler", "scaler and the chart's own scaler are too alike"),
        ("default", "models[0].name=dashboard", "dashboard and the chart's own dashboard are too alike"),
        ("default", "modelServer.rollingUpdate.maxSurge=0", "no pod could ever be replaced"),
        ("default", "monitoring.podMonitor=true,monitoring.serviceMonitor=true", "choose one"),
        ("default", "aggregator.http.httpRoute.spec.parentRefs[0].name=g", "set aggregator.http.enabled"),
        ("default", "strimzi.enabled=true", "strimzi.cluster must name the Kafka resource"),
        ("default", "aggregator.env[0].name=A,aggregator.env[1].name=A", "A is given twice"),
    ],
)
def test_what_cannot_work_is_refused_in_words(case: str, values: str, says: str) -> None:
    done = template(4, case, "--set", values)
    assert done.returncode != 0
    assert says in done.stderr


def checksums(objects: list[Object]) -> dict[str, str]:
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]
        for each in objects
        if each["kind"] == "Deployment"
    }


@pytest.mark.parametrize(
    ("values", "rolled"),
    [
        ("aggregator.config.batching.token_budget=7", {"aggregator"}),
        ("modelServer.config.engine.step_tokens=512", {"model-server"}),
        ("scaler.config.policy.drain_s=7", {"scaler"}),
        ("kafka.config.group_id=other", {"aggregator", "scaler"}),
        ("monitoring.podMonitor=true", set[str]()),
    ],
)
def test_a_changed_setting_rolls_the_pods_that_read_it(values: str, rolled: set[str]) -> None:
    before, after = checksums(render("default")), checksums(render("default", "--set", values))
    assert {component for component, checksum in after.items() if checksum != before[component]} == rolled


def test_a_new_version_of_the_chart_rolls_no_pod_whose_image_stays(tmp_path: Path) -> None:
    newer = shutil.copytree(CHART, tmp_path / "tokenbatch")
    about = newer / "Chart.yaml"
    about.write_text(about.read_text(encoding="utf-8").replace("0.1.0", "0.2.0"), encoding="utf-8")
    tags = ("--set", "modelServer.image.tag=v1,aggregator.image.tag=v1,scaler.image.tag=v1")
    before, after = (
        {name: each["spec"]["template"] for name, each in deployments(render("default", *tags, chart=chart)).items()}
        for chart in (CHART, newer)
    )
    assert len(before) == 3
    assert after == before


def deployments(objects: list[Object]) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == "Deployment"}


def test_the_scaler_is_of_the_aggregators_image_unless_it_has_its_own() -> None:
    def image(values: str) -> str:
        objects = render("default", "--set", values)
        (container,) = find(objects, "Deployment", "t-tokenbatch-scaler")["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    mirrored = "aggregator.image.registry=a,aggregator.image.repository=b/c"
    assert image("image.registry=a") == "a/tokenbatch/aggregator:0.1.0"
    assert image(f"{mirrored},aggregator.image.tag=v7") == "a/b/c:v7"
    assert image(f"{mirrored},aggregator.image.digest=sha256:1") == "a/b/c@sha256:1"
    assert image(f"{mirrored},aggregator.image.digest=sha256:1,scaler.image.tag=v8") == "a/b/c:v8"
    assert image(f"{mirrored},aggregator.image.tag=v7,scaler.image.repository=d") == "a/d:v7"


@pytest.mark.parametrize(("values", "protocol"), [("", "kubernetes.io/h2c"), (TLS, "https")])
def test_the_services_say_whether_grpc_is_in_the_clear(values: str, protocol: str) -> None:
    objects = render("default", *(("--set", values) if values else ()))
    for name in ("t-tokenbatch-aggregator", "t-tokenbatch-aggregator-pods"):
        port = find(objects, "Service", name)["spec"]["ports"][0]
        assert (port["name"], port["appProtocol"]) == ("grpc", protocol)


@pytest.mark.parametrize(("values", "protocol"), [("", "http"), (f",{TLS}", "https")])
def test_http_is_served_where_it_is_asked_for(values: str, protocol: str) -> None:
    values = f"aggregator.http.enabled=true,aggregator.config.http.trusts_token_ids=true{values}"
    objects = render("default", "--set", values)
    ports = find(objects, "Service", "t-tokenbatch-aggregator")["spec"]["ports"]
    assert ports[1:] == [{"name": "http", "port": 8000, "targetPort": "http", "appProtocol": protocol}]
    container = find(objects, "Deployment", "t-tokenbatch-aggregator")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "http", "containerPort": 8000} in container["ports"]
    config = find(objects, "ConfigMap", "t-tokenbatch-aggregator")["data"]["aggregator.yaml"]
    assert yaml.safe_load(config)["http"] == {"bind": "0.0.0.0:8000", "trusts_token_ids": True}
    command = find(objects, "Pod", "t-tokenbatch-test")["spec"]["containers"][0]["command"]
    assert ("t-tokenbatch-aggregator:8000" in command) == (protocol == "http")


@pytest.mark.parametrize(
    ("values", "callers"),
    [
        ("", [{"podSelector": {}}]),
        ("aggregator.serviceType=LoadBalancer", None),
        ("aggregator.serviceType=NodePort", None),
        (f"aggregator.serviceType=LoadBalancer,{NAMED}", [{"podSelector": {"matchLabels": {"may": "call"}}}]),
    ],
)
def test_who_comes_from_outside_is_let_in_where_the_service_is_for_him(
    values: str, callers: list[Object] | None
) -> None:
    objects = render("default", *(("--set", values) if values else ()))
    (rule,) = (
        each
        for each in find(objects, "NetworkPolicy", "t-tokenbatch-aggregator")["spec"]["ingress"]
        if each["ports"] == [{"port": "grpc"}]
    )
    assert rule.get("from") == callers


def test_a_new_scaled_object_takes_no_pod_at_once_and_all_that_keda_takes() -> None:
    def spec(values: str) -> Object:
        found = find(render("keda", "--set", values), "ScaledObject", "t-tokenbatch-all-minilm-l6-v2")["spec"]
        return dict(found)

    plain = spec("modelServer.autoscaling.maxReplicas=4")
    assert plain["initialCooldownPeriod"] == plain["cooldownPeriod"] == 300
    keda = "modelServer.autoscaling.keda"
    changed = spec(
        f"{keda}.cooldownPeriod=0,{keda}.pollingInterval=1,{keda}.fallback.failureThreshold=9"
        f",{keda}.triggers[0].type=cron,{keda}.triggers[0].metadata.start=0 8 * * *"
    )
    assert (changed["cooldownPeriod"], changed["initialCooldownPeriod"], changed["pollingInterval"]) == (0, 0, 1)
    assert changed["fallback"] == {**plain["fallback"], "failureThreshold": 9}
    assert changed["triggers"] == [*plain["triggers"], {"type": "cron", "metadata": {"start": "0 8 * * *"}}]


@pytest.mark.parametrize("case", ["default", "adapter"])
def test_keda_lets_a_scaled_object_come_beside_the_charts_autoscaler(case: str) -> None:
    autoscalers = [each for each in render(case) if each["kind"] == "HorizontalPodAutoscaler"]
    assert len(autoscalers) == 2
    for each in autoscalers:
        assert each["metadata"]["annotations"]["validations.keda.sh/hpa-ownership"] == "false"


def test_zero_and_false_override_a_default() -> None:
    objects = render("default", "--set", "models[0].name=m,models[0].gpu.count=0,models[0].autoscaling.enabled=false")
    limits = find(objects, "Deployment", "t-tokenbatch-m")["spec"]["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ]
    assert "nvidia.com/gpu" not in limits
    assert not any(each["metadata"]["name"] == "t-tokenbatch-m" and "Autoscaler" in each["kind"] for each in objects)


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ("gpu.count=1", "tokenbatch/modelserver:0.1.0"),
        ("gpu.count=0", "tokenbatch/modelserver:0.1.0-cpu"),
        ("gpu.count=0,modelServer.image.tag=mine", "tokenbatch/modelserver:mine"),
        ("gpu.count=0,modelServer.image.digest=sha256:ab", "tokenbatch/modelserver@sha256:ab"),
    ],
)
def test_a_model_without_a_gpu_has_the_image_for_cpus(values: str, image: str) -> None:
    objects = render("default", "--set", f"models[0].name=m,models[0].{values}")
    (container,) = find(objects, "Deployment", "t-tokenbatch-m")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image


def test_a_model_that_generates_is_a_topic_and_settings() -> None:
    """With Strimzi its reply topic is made, too."""
    topic = "kafka.config.topics[0]"
    values = (
        f"{topic}.name=generate.requests.v1",
        f"{topic}.task=generate",
        "modelServer.config.generation.time_per_output_token_s=1",
        "strimzi.enabled=true",
        "strimzi.cluster=main",
    )
    objects = render("default", *(part for value in values for part in ("--set", value)))
    made = {each["spec"]["topicName"] for each in objects if each["kind"] == "KafkaTopic"}
    assert {"generate.requests.v1", "generate.requests.v1-dlt", "generate.replies.v1"} <= made
    configs = "".join(str(each["data"]) for each in objects if each["kind"] == "ConfigMap")
    assert "time_per_output_token_s: 1" in configs
    assert "task: generate" in configs


def test_a_model_of_both_tasks_is_configured_so_in_the_aggregator() -> None:
    values = ("models[0].name=house", "models[0].config.model.task=both", "models[1].name=chat")
    objects = render("default", *(part for value in values for part in ("--set", value)))
    aggregator = find(objects, "ConfigMap", "t-tokenbatch-aggregator")["data"]["aggregator.yaml"]
    models = aggregator.partition("models:")[2].partition("tenants:")[0].splitlines()
    assert [line for line in models if "name:" in line or "task:" in line] == [
        "  name: house",
        "  task: both",
        "  name: chat",
    ]
