"""The Batch API's store or volume reaches the aggregators, and what cannot work is refused."""

from __future__ import annotations

import pytest
import yaml

from tests.chart.rendering import Object, find, render, template

ON = ("--set", "batches.enabled=true", "--set", "aggregator.http.enabled=true")
S3 = (*ON, "--set", "batches.store=s3://bucket/prefix")
CLAIM = (*ON, "--set", "batches.volume.persistentVolumeClaim.claimName=batches")


def settings_of(objects: list[Object]) -> Object:
    config: Object = yaml.safe_load(find(objects, "ConfigMap", "t-tokenbatch-aggregator")["data"]["aggregator.yaml"])
    return config


def test_without_batches_nothing_is_said_of_them() -> None:
    assert "batches" not in settings_of(render("default"))


def test_a_store_is_reached_over_https() -> None:
    objects = render("default", *S3)
    assert settings_of(objects)["batches"] == {"store": "s3://bucket/prefix"}
    policy = find(objects, "NetworkPolicy", "t-tokenbatch-aggregator")
    assert {"ports": [{"port": 443}]} in policy["spec"]["egress"]
    pod = find(objects, "Deployment", "t-tokenbatch-aggregator")["spec"]["template"]["spec"]
    assert "batches" not in [each["name"] for each in pod["volumes"]]


def test_a_volume_is_mounted_where_the_settings_say() -> None:
    objects = render("default", *CLAIM)
    place = settings_of(objects)["batches"]["store"].removeprefix("file://")
    pod = find(objects, "Deployment", "t-tokenbatch-aggregator")["spec"]["template"]["spec"]
    assert {"name": "batches", "mountPath": place} in pod["containers"][0]["volumeMounts"]
    assert {"name": "batches", "persistentVolumeClaim": {"claimName": "batches"}} in pod["volumes"]


def test_strimzi_keeps_records_for_longer_than_any_window() -> None:
    strimzi = ("--set", "strimzi.enabled=true,strimzi.cluster=main,strimzi.user=true")
    objects = render("default", *S3, *strimzi)
    topic = find(objects, "KafkaTopic", "batch.chunks.v1")["spec"]
    assert (topic["topicName"], topic["config"]["retention.ms"]) == ("batch.chunks.v1", 8 * 86_400_000)
    acls = find(objects, "KafkaUser", "t-tokenbatch")["spec"]["authorization"]["acls"]
    assert {"type": "group", "name": "tokenbatch-batches"} in [each["resource"] for each in acls]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (ON, "needs batches.store or batches.volume"),
        ((*S3, *CLAIM), "and not both"),
        (("--set", "batches.enabled=true", "--set", "batches.store=s3://a/b"), "aggregator.http.enabled"),
        ((*S3, "--set", "kafka.enabled=false"), "needs kafka.enabled"),
        ((*S3, "--set", "batches.config.store=s3://a/b"), "store"),
        ((*ON, "--set", "batches.store=/x"), "/batches/store"),
        ((*ON, "--set", "batches.store=file:///x"), "/batches/store"),
    ],
)
def test_values_that_cannot_work_are_refused(arguments: tuple[str, ...], why: str) -> None:
    refused = template(4, "default", *arguments)
    assert refused.returncode != 0
    assert why in refused.stderr
