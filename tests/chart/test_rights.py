"""Who may reach whom, and who may ask Kubernetes for what: all of it, in two tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.rendering import NAMESPACE, Object, find, pod_specs, render

ANY = "anyone"
NEIGHBOURS = {
    "namespaceSelector": {},
    "podSelector": {
        "matchLabels": {"app.kubernetes.io/part-of": "tokenbatch", "app.kubernetes.io/component": "scaler"}
    },
}
DNS = {53, 5353}  # the usual one; that of OpenShift's pods


def labels(objects: list[Object]) -> dict[str, dict[str, str]]:
    """Component → its pods' labels; one model stands for all."""
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if each["kind"] == "Deployment"
    }
    pods |= {each["metadata"]["name"]: each["metadata"]["labels"] for each in objects if each["kind"] == "Pod"}
    return {each["app.kubernetes.io/component"]: each for each in pods.values()}


def selects(selector: dict[str, Any], pod: dict[str, str]) -> bool:
    return all(pod.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def policies(objects: list[Object], pod: dict[str, str], direction: str) -> list[Object] | None:
    """The policies that hold a pod in one direction; None: it is held by none."""
    held = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        and direction in each["spec"]["policyTypes"]
        and selects(each["spec"]["podSelector"], pod)
    ]
    return held or None


def peers(rule: Object, key: str, pods: dict[str, dict[str, str]]) -> Iterator[str]:
    """Whom a rule lets through: components of the release, or outsiders by their namespace or address."""
    if key not in rule:
        yield ANY
    for peer in rule.get(key, ()):
        if "ipBlock" in peer:
            yield peer["ipBlock"]["cidr"]
        elif "podSelector" in peer and "namespaceSelector" in peer:
            assert peer == NEIGHBOURS
            yield "scalers of all releases"
        elif "namespaceSelector" in peer:
            chosen = peer["namespaceSelector"].get("matchLabels", {})
            yield next(iter(chosen.values()), "any namespace") if chosen else "any namespace"
        elif not peer["podSelector"].get("matchLabels"):
            yield "the namespace"
        else:
            yield from (name for name, pod in pods.items() if selects(peer["podSelector"], pod))


def edges(objects: list[Object], direction: str) -> set[tuple[str, str, str]]:
    """(component, whom, port) of everything that is let through."""
    pods = labels(objects)
    key, field = ("from", "ingress") if direction == "Ingress" else ("to", "egress")
    return {
        (component, who, str(port["port"]))
        for component, pod in pods.items()
        for policy in policies(objects, pod, direction) or ()
        for rule in policy.get(field, ())
        for who in peers(rule, key, pods)
        for port in rule["ports"]
    }


def test_every_pod_is_denied_by_default_in_both_directions() -> None:
    objects = render("default")
    deny = find(objects, "NetworkPolicy", "t-tokenbatch-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    for pod in labels(objects).values():
        assert selects(deny["podSelector"], pod)


def test_these_may_come_in_and_no_others() -> None:
    assert edges(render("default"), "Ingress") == {
        ("aggregator", "the namespace", "grpc"),
        ("aggregator", "test", "grpc"),
        ("aggregator", "scaler", "demand"),
        ("aggregator", "any namespace", "metrics"),
        ("model-server", "aggregator", "grpc"),
        ("model-server", "any namespace", "metrics"),
        ("scaler", ANY, "api"),
        ("scaler", "scalers of all releases", "keda"),
        ("scaler", "any namespace", "metrics"),
    }


def test_these_ways_lead_out_and_no_others() -> None:
    pods = ("aggregator", "model-server", "scaler", "test")
    names = {(component, ANY, str(port)) for component in pods for port in DNS}  # of a node's cache, too: no pod
    kafka = {(component, ANY, "9092") for component in ("aggregator", "scaler", "test")}
    kubernetes = {(component, ANY, port) for component in ("aggregator", "scaler", "test") for port in ("443", "6443")}
    assert edges(render("default"), "Egress") == {
        *names,
        *kafka,
        *kubernetes,
        ("aggregator", "model-server", "grpc"),
        ("model-server", ANY, "443"),  # the hub
        ("scaler", "aggregator", "demand"),
        ("scaler", "scalers of all releases", "keda"),
        ("test", "aggregator", "grpc"),
    }


def test_keda_reaches_the_scaler_only_in_its_mode_and_from_its_namespace() -> None:
    found = edges(render("keda"), "Ingress")
    assert ("scaler", "keda-system", "keda") in found
    assert not any(port == "api" for _, _, port in found)


def test_named_clients_brokers_and_collectors_replace_the_open_rules() -> None:
    objects = render("everything")
    incoming, outgoing = edges(objects, "Ingress"), edges(objects, "Egress")
    assert ("aggregator", "search", "grpc") in incoming
    assert ("aggregator", "monitoring", "metrics") in incoming
    assert not any(who == "the namespace" for _, who, _ in incoming)
    assert {("aggregator", "10.1.0.0/16", "9093"), ("aggregator", "10.1.0.0/16", "9094")} <= outgoing
    assert ("scaler", "otel", "4317") in outgoing


def test_a_model_from_a_volume_has_no_way_to_the_internet() -> None:
    objects = render("everything")
    house = find(objects, "Deployment", "embed-house")["spec"]["template"]["metadata"]["labels"]
    rules = [rule for policy in policies(objects, house, "Egress") or () for rule in policy.get("egress", ())]
    assert all("to" in rule or {port["port"] for port in rule["ports"]} == DNS for rule in rules)


@pytest.mark.parametrize(("value", "ports"), [("{1053}", [1053, 1053]), ("null", None)])
def test_names_are_asked_for_at_these_ports_and_nowhere_without_any(value: str, ports: list[int] | None) -> None:
    policy = find(render("default", "--set", f"networkPolicy.dnsPorts={value}"), "NetworkPolicy", "t-tokenbatch-dns")
    rules = policy["spec"]["egress"] or []
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == ([ports] if ports else [])


def rights(objects: list[Object]) -> dict[str, set[tuple[str, str, str]]]:
    """Account → (resource, name or *, verbs), by the roles that the chart makes and binds."""
    roles = {
        (each["kind"], each["metadata"]["name"]): each for each in objects if each["kind"] in {"Role", "ClusterRole"}
    }
    found: dict[str, set[tuple[str, str, str]]] = {}
    for binding in objects:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        reference = binding["roleRef"]
        role = roles.get((reference["kind"], reference["name"]))
        where = binding["metadata"].get("namespace", "cluster")
        rules = role["rules"] if role else [{"resources": [reference["name"]], "verbs": ["role"]}]
        for subject in binding["subjects"]:
            assert subject["namespace"] == NAMESPACE
            for rule in rules:
                assert "*" not in [*rule.get("apiGroups", ()), *rule["resources"], *rule["verbs"]]
                for name in rule.get("resourceNames", ["*"]):
                    entry = (f"{where}/{rule['resources'][0]}", name, ",".join(rule["verbs"]))
                    found.setdefault(subject["name"], set()).add(entry)
    return found


def test_accounts_have_these_rights_and_no_others() -> None:
    slices = ("ns/endpointslices", "*", "get,list,watch")
    assert rights(render("default")) == {
        "t-tokenbatch-aggregator": {slices},
        "t-tokenbatch-scaler": {
            slices,
            ("ns/deployments", "t-tokenbatch-all-minilm-l6-v2", "get"),
            ("ns/secrets", "t-tokenbatch-scaler-tls", "get,update"),
            ("ns/tokenbatch_required_replicas", "*", "list"),
            ("ns/events", "*", "create"),
            ("cluster/apiservices", "v1beta1.external.metrics.k8s.io", "get,create,patch,delete"),
            ("cluster/clusterroles", "t-tokenbatch-scaler-ns", "get"),
            ("kube-system/extension-apiserver-authentication-reader", "*", "role"),
        },
    }


def test_without_the_metrics_api_the_scaler_has_rights_in_one_namespace() -> None:
    assert all(place.startswith("ns/") for place, _, _ in rights(render("keda"))["t-tokenbatch-scaler"])


def test_with_certificates_of_others_the_scaler_writes_no_secret() -> None:
    of_secrets = {each for each in rights(render("everything"))["embed-scaler"] if each[0] == "ns/secrets"}
    assert of_secrets == {("ns/secrets", "embed-scaler-tls", "get")}


def test_beside_an_adapter_the_scaler_has_rights_in_one_namespace_only() -> None:
    found = rights(render("adapter"))["t-tokenbatch-scaler"]
    assert {verbs for _, _, verbs in found} == {"get,list,watch", "get", "list"}
    assert ("ns/tokenbatch_scaler_figure", "*", "list") in found
    assert all(place.startswith("ns/") for place, _, _ in found)


@pytest.mark.parametrize("case", ["default", "adapter", "keda", "unscaled-cpu"])
def test_pods_that_ask_kubernetes_nothing_hold_no_token(case: str) -> None:
    asking = ("-aggregator", "-scaler", *(("-test",) if case in {"default", "adapter"} else ()))
    for name, spec in pod_specs(render(case)).items():
        needs = name.endswith(asking)
        assert spec.get("automountServiceAccountToken", True) is needs, name


def test_only_the_aggregator_reaches_redis_and_only_at_its_own_ports() -> None:
    on = ("--set=redis.enabled=true", r"--set=redis.servers=redis-0:6380\,redis-1:6381")
    without = edges(render("default"), "Egress")
    assert edges(render("default", *on), "Egress") - without == {
        ("aggregator", ANY, "6380"),
        ("aggregator", ANY, "6381"),
    }
    named = render("default", *on, "--set=networkPolicy.redisPorts={7000}")
    assert edges(named, "Egress") - without == {("aggregator", ANY, "7000")}


def test_without_kafka_nothing_is_allowed_to_reach_it_and_nobody_reads_it() -> None:
    off = ("--set=kafka.enabled=false,kafka.bootstrapServers=", "--set=redis.enabled=true,redis.servers=redis-0:6380")
    with_kafka, without = (edges(render("default", *more), "Egress") for more in ((), off))
    assert {port for _, _, port in with_kafka - without} == {"9092"}
    assert without - with_kafka == {("aggregator", ANY, "6380")}
    configs = [each["data"] for each in render("default", *off) if each["kind"] == "ConfigMap"]
    read = [yaml.safe_load(text) for each in configs for text in each.values()]
    assert [each["kafka"] for each in read if "kafka" in each] == [{"enabled": False}] * 2
