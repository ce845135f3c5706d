"""Several model servers on one GPU, and as many aggregators as may serve them."""

from __future__ import annotations

import pytest
import yaml

from tests.chart.rendering import Object, find, render, template

NAME = "t-tokenbatch-all-minilm-l6-v2"
SHARED = "modelServer.gpu.serversPerGpu=4,modelServer.resources.limits.memory=16Gi,modelServer.resources.requests.cpu=2"


def container(*values: str) -> tuple[Object, Object]:
    """The model server's pod, and its container."""
    pod: Object = find(render("default", *values), "Deployment", NAME)["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def test_servers_that_share_a_gpu_ask_for_one_part_and_for_whole_cores() -> None:
    _, found = container("--set-json", 'modelServer.resources.requests={"cpu":2,"memory":"8Gi"}', "--set", SHARED)
    resources = found["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == 1
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"] == 2
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "16Gi"


def test_the_memory_of_a_shared_gpu_is_divided() -> None:
    config = find(render("default", "--set", SHARED), "ConfigMap", NAME)["data"]["modelserver.yaml"]
    assert yaml.safe_load(config)["engine"]["gpu_share"] == 0.25
    own = ("--set", SHARED, "--set-json", 'modelServer.config.engine={"gpu_share":0.1,"dtype":"float16"}')
    config = find(render("default", *own), "ConfigMap", NAME)["data"]["modelserver.yaml"]
    assert yaml.safe_load(config)["engine"] == {"gpu_share": 0.1, "dtype": "float16"}
    plain = find(render("default"), "ConfigMap", NAME)["data"]["modelserver.yaml"]
    assert "gpu_share" not in plain


def test_the_shared_memory_of_mps_is_not_hidden_by_the_pods_own() -> None:
    for values, there in (((), True), (("--set", SHARED), False)):
        pod, found = container(*values)
        assert any(each["mountPath"] == "/dev/shm" for each in found["volumeMounts"]) is there  # noqa: S108
        assert any(each["name"] == "shared-memory" for each in pod["volumes"]) is there


@pytest.mark.parametrize("count", [0, 2])
def test_servers_cannot_share_none_or_several_gpus(count: int) -> None:
    done = template(4, "default", "--set", f"{SHARED},modelServer.gpu.count={count}")
    assert done.returncode != 0
    assert f"has gpu.serversPerGpu 4 and gpu.count {count}" in done.stderr


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ("modelServer.autoscaling.maxReplicas=8", 8),
        ("modelServer.autoscaling.maxReplicas=5", 5),
        ("modelServer.autoscaling.maxReplicas=40", 8),
        ("modelServer.autoscaling.maxReplicas=40,kafka.config.partitions=64", 40),
        ("modelServer.autoscaling.maxReplicas=40,kafka.enabled=false", 40),
        ("modelServer.autoscaling.enabled=false,modelServer.replicas=6", 6),
        ("modelServer.autoscaling.maxReplicas=1", 2),
        ("aggregator.autoscaling.maxReplicas=3", 3),
    ],
)
def test_there_may_be_as_many_aggregators_as_model_servers(values: str, most: int) -> None:
    found = find(render("default", "--set", values), "HorizontalPodAutoscaler", "t-tokenbatch-aggregator")
    assert found["spec"]["maxReplicas"] == most
