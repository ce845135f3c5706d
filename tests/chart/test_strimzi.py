"""The user that Strimzi makes may do what the settings ask for, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.chart.rendering import find, render, template

USER = "strimzi.enabled=true,strimzi.cluster=main,strimzi.user=true"


def replies(*topics: str) -> tuple[str, ...]:
    return ("--set", USER, "--set-json", f"kafka.config.allowed_reply_topics={json.dumps(topics)}")


def test_replies_may_be_written_to_every_topic_that_a_request_may_name() -> None:
    user = find(render("default", *replies("team-a.*", "answers", "*", "answers")), "KafkaUser", "t-tokenbatch")
    before = find(render("default", "--set", USER), "KafkaUser", "t-tokenbatch")
    acls, own = (each["spec"]["authorization"]["acls"] for each in (user, before))
    assert [each for each in acls if each not in own] == [
        {"resource": resource, "operations": ["Describe", "DescribeConfigs", "Write"]}
        for resource in (
            {"type": "topic", "name": "team-a.", "patternType": "prefix"},
            {"type": "topic", "name": "answers"},
            {"type": "topic", "name": "*"},
        )
    ]
    assert [each for each in acls if each in own] == own


@pytest.mark.parametrize("pattern", ["a*b", "*.replies", "a?", "[ab]*", "a**"])
def test_a_pattern_that_no_right_in_kafka_has_is_refused(pattern: str) -> None:
    done = template(4, "default", *replies(pattern))
    assert done.returncode != 0
    assert f"allowed_reply_topics has {pattern}, and no right in Kafka is of such a pattern" in done.stderr
    render("default", "--set-json", f'kafka.config.allowed_reply_topics=["{pattern}"]')
