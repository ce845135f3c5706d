"""What platforms ask for beyond the chart's own values is passed through as Kubernetes has it."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from tests.chart.custom_resources import validate
from tests.chart.rendering import Object, find, pod_specs, render
from tests.chart.test_pods import violations

PODS = {"aggregator": "t-tokenbatch-aggregator", "modelServer": "t-tokenbatch-all-minilm-l6-v2"}
PODS["scaler"] = "t-tokenbatch-scaler"
NEWEST = "1.37"


def given(values: Object, *, version: int = 4, case: str = "default") -> list[Object]:
    """Rendered with these values besides; every object of Kubernetes' own is strictly valid."""
    settings = ",".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    objects = render(case, "--set-json", settings, version=version)
    for each in objects:
        if each["apiVersion"].startswith("gateway."):
            validate(each)
        elif "." not in each["apiVersion"] or each["apiVersion"].partition("/")[0].endswith("k8s.io"):
            kubernetes_validate.validate(each, NEWEST, strict=True)
    return objects


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("part", PODS)
def test_pods_run_as_whoever_the_platform_says(part: str, version: int) -> None:
    no_user = {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    spec = pod_specs(given({f"{part}.podSpec": no_user}, version=version))[PODS[part]]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_pod_of_helm_test_runs_as_the_aggregators_do() -> None:
    values = {
        "aggregator.podSpec": {"securityContext": {"runAsUser": 1000660000}, "hostAliases": [{"ip": "10.0.0.1"}]},
        "aggregator.container": {"securityContext": {"runAsUser": None, "capabilities": {"drop": ["NET_RAW"]}}},
    }
    spec = pod_specs(given(values))["t-tokenbatch-test"]
    assert spec["securityContext"]["runAsUser"] == 1000660000
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["NET_RAW"]}
    assert "hostAliases" not in spec


@pytest.mark.parametrize("part", PODS)
def test_containers_and_volumes_are_added_and_all_else_replaces_its_like(part: str) -> None:
    plain = pod_specs(render("default"))[PODS[part]]
    mine: Object = {"name": "mine", "image": "mine:1", "securityContext": plain["containers"][0]["securityContext"]}
    volume, mount = {"name": "mine", "emptyDir": {}}, {"name": "mine", "mountPath": "/mine"}
    values = {
        f"{part}.podSpec": {
            "schedulerName": "volcano",
            "initContainers": [mine],
            "containers": [{**mine, "name": "beside"}],
            "volumes": [volume],
        },
        f"{part}.container": {
            "envFrom": [{"secretRef": {"name": "mine"}}],
            "volumeMounts": [mount],
            "readinessProbe": {"periodSeconds": 3},
            "startupProbe": {"failureThreshold": 7},
        },
    }
    spec = pod_specs(given(values))[PODS[part]]
    assert violations(spec) == []
    assert spec["schedulerName"] == "volcano"
    assert [each["name"] for each in spec["initContainers"]] == ["mine"]
    assert [each["name"] for each in spec["containers"]] == [plain["containers"][0]["name"], "beside"]
    assert spec["volumes"] == [*plain["volumes"], volume]
    own, was = spec["containers"][0], plain["containers"][0]
    assert own["volumeMounts"] == [*was["volumeMounts"], mount]
    assert own["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert own["readinessProbe"] == {**was["readinessProbe"], "periodSeconds": 3}
    assert own["startupProbe"] == {**was["startupProbe"], "failureThreshold": 7}
    same = ("image", "command", "resources", "ports", "livenessProbe")
    assert {key: own[key] for key in same} == {key: was[key] for key in same}


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("part", PODS)
def test_null_removes_a_list_and_an_empty_one_adds_nothing(part: str, version: int) -> None:
    plain = pod_specs(render("default"))[PODS[part]]
    none = {f"{part}.podSpec": {"initContainers": None}, f"{part}.container": {"env": None, "envFrom": None}}
    spec = pod_specs(given(none, version=version))[PODS[part]]
    (container,) = plain["containers"]
    assert spec == {**plain, "containers": [{key: value for key, value in container.items() if key != "env"}]}
    empty: Object = {f"{part}.podSpec": {"initContainers": [], "volumes": []}, f"{part}.container": {"env": []}}
    assert pod_specs(given(empty, version=version))[PODS[part]] == plain


def test_a_variable_of_the_values_replaces_the_charts() -> None:
    plain = pod_specs(render("default"))[PODS["modelServer"]]["containers"][0]["env"]
    mine = {"name": "HF_HOME", "value": "/elsewhere"}
    env = pod_specs(given({"modelServer.container": {"env": [mine]}}))[PODS["modelServer"]]["containers"][0]["env"]
    assert env == [*(each for each in plain if each["name"] != "HF_HOME"), mine]
    assert len(env) == len(plain)


def test_a_models_pods_alone_take_what_it_says() -> None:
    models = [
        {"name": "a", "source": {"path": "/models/a"}, "podSpec": {"schedulerName": "volcano"}},
        {"name": "b", "source": {"path": "/models/b"}},
    ]
    specs = pod_specs(given({"models": models, "modelServer.podSpec": {"hostname": "server"}}))
    assert [specs[f"t-tokenbatch-{name}"].get("schedulerName") for name in "ab"] == ["volcano", None]
    assert [specs[f"t-tokenbatch-{name}"]["hostname"] for name in "ab"] == ["server", "server"]


def test_weights_come_from_an_object_store_by_init_container_or_as_image() -> None:
    fetch = {
        "name": "fetch",
        "image": "amazon/aws-cli:2",
        "args": ["s3", "sync", "s3://models/bge", "/models/bge"],
        "volumeMounts": [{"name": "weights", "mountPath": "/models"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    stored: Object = {
        "name": "stored",
        "source": {"path": "/models/bge"},
        "podSpec": {"initContainers": [fetch], "volumes": [{"name": "weights", "emptyDir": {"sizeLimit": "5Gi"}}]},
        "container": {"volumeMounts": [{"name": "weights", "mountPath": "/models", "readOnly": True}]},
    }
    packed: Object = {"name": "packed", "source": {"volume": {"image": {"reference": "registry.example/bge:1"}}}}
    store = {"to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": [{"port": 443}]}
    objects = given({"models": [stored, packed], "networkPolicy.models": [store]})
    first, second = (pod_specs(objects)[f"t-tokenbatch-{name}"] for name in ("stored", "packed"))
    assert violations(first) == []
    assert first["initContainers"] == [fetch]
    assert second["volumes"][-1] == {"name": "models", "image": {"reference": "registry.example/bge:1"}}
    policy = find(objects, "NetworkPolicy", "t-tokenbatch-model-server")["spec"]
    assert policy["egress"] == [store]
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_each_component_has_an_identity_of_its_own_in_the_cloud() -> None:
    role = "eks.amazonaws.com/role-arn"
    values = {
        "serviceAccounts.annotations": {"team": "search"},
        "serviceAccounts.aggregator": {role: "a"},
        "serviceAccounts.modelServer": {role: "m"},
        "serviceAccounts.scaler": {"team": "platform"},
    }
    found = {
        each["metadata"]["name"].removeprefix("t-tokenbatch-"): each["metadata"]["annotations"]
        for each in given(values)
        if each["kind"] == "ServiceAccount"
    }
    assert found == {
        "aggregator": {"team": "search", role: "a"},
        "model-server": {"team": "search", role: "m"},
        "scaler": {"team": "platform"},
    }


def test_the_callers_service_takes_what_kubernetes_has() -> None:
    mine = {"loadBalancerClass": "example.com/inner", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    objects = given({"aggregator.serviceType": "LoadBalancer", "aggregator.service": mine})
    plain = find(render("default"), "Service", "t-tokenbatch-aggregator")["spec"]
    assert find(objects, "Service", "t-tokenbatch-aggregator")["spec"] == {**plain, "type": "LoadBalancer", **mine}
    ports = [{"name": "grpc", "port": 443, "targetPort": "grpc", "nodePort": 30051}]
    objects = given({"aggregator.serviceType": "NodePort", "aggregator.service": {"ports": ports}})
    assert find(objects, "Service", "t-tokenbatch-aggregator")["spec"]["ports"] == ports


@pytest.mark.parametrize(("value", "kind"), [("grpcRoute", "GRPCRoute"), ("httpRoute", "HTTPRoute")])
def test_a_route_leads_to_the_aggregators_and_lets_the_gateway_in(value: str, kind: str) -> None:
    spec: Object = {"parentRefs": [{"name": "gateway"}], "hostnames": ["embed.example"]}
    backends = [{"name": "t-tokenbatch-aggregator", "port": 50051}]
    route = find(given({f"aggregator.{value}.spec": spec}), kind, "t-tokenbatch-aggregator")
    assert route["spec"] == {**spec, "rules": [{"backendRefs": backends}]}
    matched: Object = {"matches": [{"headers": [{"name": "tenant", "value": "search"}]}]}
    elsewhere: Object = {"backendRefs": [{"name": "other", "port": 1}]}
    objects = given(
        {f"aggregator.{value}": {"annotations": {"a": "b"}, "spec": spec | {"rules": [matched, elsewhere]}}}
    )
    route = find(objects, kind, "t-tokenbatch-aggregator")
    assert route["spec"]["rules"] == [{**matched, "backendRefs": backends}, elsewhere]
    assert route["metadata"]["annotations"] == {"a": "b"}
    assert _callers(objects) is None


def _callers(objects: list[Object], port: str = "grpc") -> Any:
    rules = find(objects, "NetworkPolicy", "t-tokenbatch-aggregator")["spec"]["ingress"]
    (found,) = (each.get("from") for each in rules if each["ports"] == [{"port": port}])
    return found


def test_an_ingress_leads_to_the_aggregators_and_lets_its_controller_in() -> None:
    backend = {"service": {"name": "t-tokenbatch-aggregator", "port": {"name": "grpc"}}}
    spec = {"ingressClassName": "nginx", "rules": [{"host": "embed.example"}]}
    objects = given({"aggregator.ingress": {"annotations": {"backend-protocol": "GRPC"}, "spec": spec}})
    ingress = find(objects, "Ingress", "t-tokenbatch-aggregator")
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    assert ingress["spec"] == {**spec, "rules": [{"host": "embed.example", "http": {"paths": paths}}]}
    assert ingress["metadata"]["annotations"] == {"backend-protocol": "GRPC"}
    assert _callers(objects) is None
    alone = find(
        given({"aggregator.ingress.spec": {"ingressClassName": "nginx"}}), "Ingress", "t-tokenbatch-aggregator"
    )
    assert alone["spec"] == {"ingressClassName": "nginx", "defaultBackend": backend}


def test_a_path_of_an_ingress_without_a_backend_leads_to_the_aggregators() -> None:
    backend = {"service": {"name": "t-tokenbatch-aggregator", "port": {"name": "http"}}}
    other = {"service": {"name": "other", "port": {"number": 1}}}
    paths: list[Object] = [
        {"path": "/v1", "pathType": "Prefix"},
        {"path": "/other", "pathType": "Exact", "backend": other},
    ]
    spec = {"rules": [{"host": "a.example", "http": {"paths": paths}}, {"host": "b.example", "http": {"paths": []}}]}
    http = {"enabled": True, "ingress": {"spec": spec}}
    ingress = find(given({"aggregator.http": http}), "Ingress", "t-tokenbatch-aggregator-http")
    assert [rule["http"]["paths"] for rule in ingress["spec"]["rules"]] == [
        [{**paths[0], "backend": backend}, paths[1]],
        [{"path": "/", "pathType": "Prefix", "backend": backend}],
    ]


def test_a_rule_that_redirects_has_no_backend() -> None:
    redirect: Object = {"filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}]}
    changed: Object = {"filters": [{"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}}]}
    spec = {"parentRefs": [{"name": "gateway"}], "rules": [redirect, changed]}
    route = find(given({"aggregator.httpRoute.spec": spec}), "HTTPRoute", "t-tokenbatch-aggregator")
    assert route["spec"]["rules"] == [
        redirect,
        {**changed, "backendRefs": [{"name": "t-tokenbatch-aggregator", "port": 50051}]},
    ]


def test_routes_of_http_lead_to_its_port_beside_those_of_grpc() -> None:
    route: Object = {"spec": {"parentRefs": [{"name": "gateway"}]}}
    ingress: Object = {"spec": {"ingressClassName": "nginx"}}
    http = {"enabled": True, "httpRoute": route, "ingress": ingress}
    objects = given({"aggregator.http": http, "aggregator.grpcRoute": route})
    backends = [{"name": "t-tokenbatch-aggregator", "port": 8000}]
    assert find(objects, "HTTPRoute", "t-tokenbatch-aggregator-http")["spec"]["rules"] == [{"backendRefs": backends}]
    backend = {"service": {"name": "t-tokenbatch-aggregator", "port": {"name": "http"}}}
    assert find(objects, "Ingress", "t-tokenbatch-aggregator-http")["spec"]["defaultBackend"] == backend
    (rule,) = find(objects, "GRPCRoute", "t-tokenbatch-aggregator")["spec"]["rules"]
    assert rule["backendRefs"][0]["port"] == 50051
    assert _callers(objects) is None
    assert _callers(objects, "http") is None


def test_http_has_callers_of_its_own_and_otherwise_those_of_grpc() -> None:
    named = [{"namespaceSelector": {"matchLabels": {"team": "search"}}}]
    http: Object = {"aggregator.http.enabled": True}
    inside: list[Object] = [{"podSelector": {}}]
    assert _callers(given(http), "http") == inside
    assert _callers(given({**http, "networkPolicy.clients": named}), "http") == named
    only_http = given({**http, "networkPolicy.httpClients": named})
    assert (_callers(only_http, "http"), _callers(only_http)) == (named, inside)
    routed = given({**http, "aggregator.grpcRoute.spec": {"parentRefs": [{"name": "gateway"}]}})
    assert (_callers(routed, "http"), _callers(routed)) == (inside, None)


def test_callers_that_are_named_are_the_only_ones_beside_a_route_too() -> None:
    named = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]
    route = {"parentRefs": [{"name": "gateway"}]}
    assert _callers(given({"aggregator.grpcRoute.spec": route, "networkPolicy.clients": named})) == named


def test_ways_out_lead_to_named_addresses_only() -> None:
    def block(number: int) -> list[Object]:
        return [{"ipBlock": {"cidr": f"10.{number}.0.0/16"}}]

    values = {f"networkPolicy.{name}": block(at) for at, name in enumerate(("kafka", "kubernetes", "dns", "hub"))}
    rules = [
        rule for each in given(values) if each["kind"] == "NetworkPolicy" for rule in each["spec"].get("egress") or ()
    ]
    assert len(rules) > 6
    assert all("to" in rule for rule in rules)
    for at, port in enumerate((9092, 443, 53, 443)):
        assert any(rule["to"] == block(at) and rule["ports"][0]["port"] == port for rule in rules)


def test_nobody_scrapes_metrics_where_nobody_is_named() -> None:
    objects = given({"networkPolicy.monitoring": []})
    rules = [rule for each in objects if each["kind"] == "NetworkPolicy" for rule in each["spec"].get("ingress") or ()]
    assert len(rules) > 3
    assert not any(port["port"] == "metrics" for rule in rules for port in rule.get("ports") or ())
    assert not any(rule.get("from") == [] for rule in rules)
