"""Whatever strings the values hold, what is rendered can be decoded by kubectl and by kustomize, as it was given.

Both are kubectl's own code: `kubectl kustomize` refuses a key that is given twice, as Flux and Argo CD do, and
`kubectl label --local` decodes into Kubernetes' types, to which `n: on` of YAML 1.1 is no label.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.conn import collect_hosts
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.chart.rendering import CHART, Object, find, kubectl, objects_of, render, run, template

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
NAMES = ("1234", "n", "y", "on", "no", "null", "true", "1e3", "0x1f", "0b1", "1-2", "2024-01-01", "12e-3", "t")
"""Names that Kubernetes allows, and that YAML 1.1 takes for something else where they are not quoted."""
SCALARS = ("", "~", "1:20", "1_000", ".5", "+1", "0o7", "010")
SYNTAX = ("a: b", "a #b", "#", "- a", "{a", "%", "@", "'", '"', "\\", " a ", "a\nb\n")
REFUSED = [chr(code) for code in (*range(0x7F, 0xA0), 0xFFFE, 0xFFFF)]
"""Characters that YAML cannot hold, which the chart refuses."""
ON: Object = {
    "redis": {"enabled": True},
    "strimzi": {"enabled": True, "user": True},
    "monitoring": {"serviceMonitor": True, "rules": True, "dashboard": True},
}

names = st.sampled_from(NAMES)
texts = (
    st.sampled_from(NAMES + SCALARS + SYNTAX)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters=REFUSED), max_size=12)
).filter(lambda text: text != "=")  # which Go leaves plain, and Python does not read
some_text = texts.filter(bool)
keys = texts.map("k{}".format)  # kustomize takes a key that is a quoted null or number for that, not for text


def any_value(draw: st.DrawFn, schema: Object) -> Any:
    """Every string that the schema allows, drawn anew; None where it holds no string."""
    if "$ref" in schema:
        return any_value(draw, SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]])
    for choice in schema.get("anyOf", ()):
        return any_value(draw, choice)
    if "enum" in schema or "const" in schema:
        return None
    kinds = schema.get("type", ())
    if "string" in kinds:
        if "pattern" in schema:
            return None
        return draw(some_text if schema.get("minLength") else texts)
    if "array" in kinds:
        item = any_value(draw, schema["items"]) if isinstance(schema.get("items"), dict) else None
        return None if item is None else [item]
    if "properties" in schema:
        each = {name: any_value(draw, part) for name, part in schema["properties"].items()}
        return {name: value for name, value in each.items() if value is not None} or None
    if schema.get("additionalProperties") == {"type": "string"}:
        return draw(st.dictionaries(keys, texts, max_size=2))
    return None


def laid_over(base: Object, given: Object) -> Object:
    both = {
        name: laid_over(base[name], value)
        for name, value in given.items()
        if isinstance(value, dict) and isinstance(base.get(name), dict)
    }
    return base | given | both


@st.composite
def any_values(draw: st.DrawFn) -> Object:
    values = laid_over(any_value(draw, SCHEMA), ON)
    values["kafka"]["bootstrapServers"] = "k, [::1]:9093,"
    values["kafka"]["config"]["topics"] = [{"name": name} for name in draw(st.lists(names, min_size=1, unique=True))]
    values["kafka"]["config"].pop("reply_topic", None)
    values["kafka"]["config"]["allowed_reply_topics"] = draw(st.lists(names))
    values["redis"]["servers"] = "r:6379"
    values["strimzi"]["cluster"] = draw(some_text)
    values["nameOverride"], values["fullnameOverride"] = draw(names), ""
    values["autoscaling"]["mode"] = draw(st.sampled_from(["hpa", "keda", "adapter", "none"]))
    first = values["models"][0]
    first["name"] = draw(names)
    first.pop("canary", None)
    first["source"].pop("path", None)
    second: Object = {
        "name": "second",
        "source": {"path": draw(texts), "revision": draw(texts)},
        "priorityClassName": draw(texts),
    }
    second["canary"] = {"share": 0.5, "source": {"revision": draw(some_text)}}
    second["cache"] = {"persistent": True, "existingClaim": draw(texts), "storageClassName": draw(texts), "size": "1"}
    values["models"].append(second)
    return values


def decoded(text: str, folder: Path) -> list[Object]:
    """The objects as kustomize reads them; Kubernetes' own kinds must be decoded by kubectl too."""
    (folder / "all.yaml").write_text(text, encoding="utf-8")
    (folder / "kustomization.yaml").write_text("resources: [all.yaml]", encoding="utf-8")
    built = subprocess.run([kubectl(), "kustomize", folder], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    objects = objects_of(built.stdout)
    kinds = ("v1", "apps/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")
    documents = [
        each for each in text.split("\n---\n") if any(f"\napiVersion: {kind}\n" in f"\n{each}" for kind in kinds)
    ]
    labelled = subprocess.run(
        [kubectl(), "label", "--local", "--filename=-", "a=b", "--output=name"],
        input="\n---\n".join(documents),
        check=False,
        capture_output=True,
        text=True,
    )
    assert labelled.returncode == 0, labelled.stderr
    assert len(labelled.stdout.splitlines()) == len(documents) > 10
    return objects


def holds(rendered: Any, given: Any) -> bool:
    """Whether everything that was given is in what was rendered."""
    if isinstance(given, dict):
        return all(holds(rendered.get(name), value) for name, value in given.items())
    return bool(rendered == given)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("release", "called"), [("1234", "tokenbatch-1234"), ("n", "n-tokenbatch"), ("a.b", "a-b-tokenbatch")]
)
def test_a_release_of_any_name_can_be_installed(release: str, called: str, version: int, tmp_path: Path) -> None:
    done = run(version, "template", release, str(CHART), "--set", "kafka.bootstrapServers=k")
    assert done.returncode == 0, done.stderr
    objects = decoded(done.stdout, tmp_path)
    assert all(
        re.fullmatch("[a-z][a-z0-9-]*", each["metadata"]["name"]) for each in objects if each["kind"] == "Service"
    )
    assert (
        find(objects, "Deployment", f"{called}-aggregator")["metadata"]["labels"]["app.kubernetes.io/instance"]
        == release
    )


def test_labels_and_annotations_of_the_values_replace_the_charts_own(tmp_path: Path) -> None:
    given = (
        r"commonLabels.helm\.sh/chart=c",
        r"commonLabels.app\.kubernetes\.io/managed-by=Argo",
        "commonLabels.team=a",
        "aggregator.podLabels.team=b",
        r"aggregator.podAnnotations.kubectl\.kubernetes\.io/default-container=mesh",
        r"strimzi.topicConfig.cleanup\.policy=compact",
        "strimzi.enabled=true,strimzi.cluster=main,monitoring.podMonitor=true,monitoring.labels.team=c",
    )
    done = template(4, "default", "--set", ",".join(given))
    assert done.returncode == 0, done.stderr
    objects = decoded(done.stdout, tmp_path)
    deployment = find(objects, "Deployment", "t-tokenbatch-aggregator")
    assert (
        deployment["metadata"]["labels"].items()
        >= {"helm.sh/chart": "c", "team": "a", "app.kubernetes.io/managed-by": "Argo"}.items()
    )
    pod = deployment["spec"]["template"]["metadata"]
    assert pod["labels"]["team"] == "b"
    assert pod["annotations"]["kubectl.kubernetes.io/default-container"] == "mesh"
    assert find(objects, "PodMonitor", "t-tokenbatch")["metadata"]["labels"]["team"] == "c"
    assert {each["spec"]["config"]["cleanup.policy"] for each in objects if each["kind"] == "KafkaTopic"} == {"compact"}


def test_a_variable_of_the_values_replaces_the_charts() -> None:
    objects = render("default", "--set", "modelServer.env[0].name=HOME,modelServer.env[0].value=/elsewhere")
    (container,) = find(objects, "Deployment", "t-tokenbatch-all-minilm-l6-v2")["spec"]["template"]["spec"][
        "containers"
    ]
    assert [each for each in container["env"] if each["name"] == "HOME"] == [{"name": "HOME", "value": "/elsewhere"}]
    assert len(container["env"]) == 2


@pytest.mark.parametrize(("enabled", "count"), [("true", 10), ("false", 0)])
@pytest.mark.parametrize("version", [3, 4])
def test_a_parent_chart_turns_it_on_and_off(version: int, enabled: str, count: int, tmp_path: Path) -> None:
    dependency = {"name": "tokenbatch", "version": "0.1.0", "condition": "tokenbatch.enabled"}
    about = yaml.safe_dump({"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]})
    (tmp_path / "Chart.yaml").write_text(about, encoding="utf-8")
    shutil.copytree(CHART, tmp_path / "charts/tokenbatch")
    values = f"tokenbatch.enabled={enabled},tokenbatch.kafka.bootstrapServers=k:9092"
    done = run(version, "template", "t", str(tmp_path), "--set", values)
    assert done.returncode == 0, done.stderr
    assert len(objects_of(done.stdout)) >= count
    assert ("kind: Deployment" in done.stdout) == bool(count)


@pytest.mark.parametrize(
    ("servers", "ports"),
    [("k", [9092]), ("k:9093", [9093]), ("a, b:9094 ,[::1]:9095,", [9092, 9094, 9095]), ("[::1]", [9092])],
)
def test_the_brokers_ports_are_those_that_the_aggregator_connects_to(servers: str, ports: list[int]) -> None:
    escaped = servers.replace(",", r"\,")
    objects = render("default", "--set", f"kafka.bootstrapServers={escaped}")
    (rule,) = (
        each
        for each in find(objects, "NetworkPolicy", "t-tokenbatch-aggregator")["spec"]["egress"]
        if each["ports"] == [{"port": port} for port in ports]
    )
    assert "to" not in rule
    named = [server for each in servers.split(",") if (server := each.strip())]
    assert sorted({port for _, port, _ in collect_hosts(named)}) == ports


@settings(max_examples=25, phases=(Phase.generate,))
@given(values=any_values(), release=names, namespace=names)
def test_every_string_comes_out_as_it_was_given(
    values: Object, release: str, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rendered")
    (folder / "values.yaml").write_text(yaml.safe_dump(values, default_style='"'), encoding="utf-8")
    done = run(4, "template", release, str(CHART), "--namespace", namespace, "--values", str(folder / "values.yaml"))
    assert done.returncode == 0, done.stderr
    objects = decoded(done.stdout, folder)
    for each in objects:
        about = each["metadata"]
        assert all(
            isinstance(text, str)
            for text in [about["name"], *about["labels"].values(), *about.get("annotations", {}).values()]
        )
        if each["kind"] == "ServiceAccount":  # which has no labels of its own
            assert values["commonLabels"].items() <= about["labels"].items()
        assert about["labels"]["app.kubernetes.io/instance"] == release
        assert about.get("namespace", namespace) in {namespace, "kube-system", values["strimzi"]["namespace"]}
    pods = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] == "Deployment"
    }
    assert pods["aggregator"].get("priorityClassName", "") == values["aggregator"]["priorityClassName"]
    config = {
        name: yaml.safe_load(text)
        for each in objects
        if each["kind"] == "ConfigMap"
        for name, text in each["data"].items()
    }
    assert holds(config["aggregator.yaml"], values["aggregator"]["config"])
    assert holds(config["aggregator.yaml"]["kafka"], values["kafka"]["config"])
