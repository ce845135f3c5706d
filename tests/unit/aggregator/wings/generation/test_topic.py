"""A query topic whose requests generate."""

from __future__ import annotations

import pytest

from aggregator.request.request import Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import decode_record, intakes
from aggregator.wings.generation.kind import GENERATION
from protos.generation.v1.generation_pb2 import GenerateRequest
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        (b"the sky", b"text/plain"),
        (b'{"prompt": "the sky"}', b"application/json"),
        (b'\xef\xbb\xbf{"prompt": "the sky"}', b"application/json"),
        (GenerateRequest(prompt="the sky").SerializeToString(), b"application/x-protobuf"),
    ],
)
def test_where_a_topic_generates_a_value_of_each_format_is_a_prompt(value: bytes, content_type: bytes) -> None:
    generating = KafkaSettings(topics=(TopicSettings(name="in", task="generate"),))
    in_flight = in_flight_of(value, [("content-type", content_type)], topic="in")
    request = decode_record(
        in_flight, intakes(generating, KAFKA, "small", kinds=[GENERATION])["in"], received_s=0.0, wall_s=0.0
    )
    assert isinstance(request, Request)
    assert list(request.inputs) == ["the sky"]
