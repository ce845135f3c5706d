"""A text that may have been answered before."""

from __future__ import annotations

from math import inf

from aggregator.registry import KINDS
from aggregator.request.request import Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.answered import Answered
from aggregator.sources.kafka.decode import decode_record, intakes
from aggregator.wings.generation.generation import generation_of
from protos.generation.v1.generation_pb2 import GenerateRequest
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of
from tests.unit.aggregator.sources.kafka.test_decode import RECEIVED_S, WALL_S


def test_a_replayed_text_waits_for_its_first_token() -> None:
    prompt = GenerateRequest(prompt="a")
    prompt.first_token_timeout.FromSeconds(5)
    in_flight = in_flight_of(prompt.SerializeToString(), topic="generate")
    topic = TopicSettings(name="generate", task="generate")
    intake = intakes(KafkaSettings(topics=(topic,)), KAFKA, "small", kinds=KINDS)["generate"]
    for highest, by_s in ((41, RECEIVED_S + 5.0), (42, inf)):
        in_flight.committed_offset.answered_before = Answered(highest)
        request = decode_record(in_flight, intake, received_s=RECEIVED_S, wall_s=WALL_S)
        assert isinstance(request, Request)
        assert generation_of(request).first_token_by_s == by_s
