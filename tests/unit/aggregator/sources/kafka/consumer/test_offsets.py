"""What a group has committed: each partition that was asked for is answered for, or the answer is an error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, UnknownTopicOrPartitionError
from aiokafka.protocol.commit import OffsetFetchRequest_v1

from aggregator.sources.kafka.consumer.offsets import committed_offsets, offsets_request, topic_note
from aggregator.sources.kafka.consumer.topic_ids import NO_ID

OWN, OTHER = b"\1" * 16, b"\2" * 16
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the coordinator says: by topic, each partition's number, offset, metadata and error code."""

    topics: list[tuple[str, list[tuple[int, int, str, int]]]]
    error_code: int = 0


def test_the_question_names_every_partition_under_its_topic() -> None:
    question = offsets_request("group", [A0, B0, A1])
    sent = OffsetFetchRequest_v1.decode(question.build(OffsetFetchRequest_v1).encode())
    assert sent.to_object() == {
        "consumer_group": "group",
        "topics": [{"topic": "a", "partitions": [0, 1]}, {"topic": "b", "partitions": [0]}],
    }


def test_offsets_are_told_by_partition_and_one_without_is_left_out() -> None:
    answer = Answer([("a", [(0, 0, "", 0), (1, -1, "", 0)]), ("b", [(0, 17, "", 0)])])
    assert committed_offsets(answer, [A0, A1, B0]) == {A0: 0, B0: 17}


def test_the_error_of_a_whole_answer_is_no_want_of_commits() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        committed_offsets(Answer([], GroupAuthorizationFailedError.errno), [])


def test_the_error_of_one_partition_is_raised() -> None:
    answer = Answer([("a", [(0, 5, "", 0), (1, -1, "", UnknownTopicOrPartitionError.errno)])])
    with pytest.raises(UnknownTopicOrPartitionError, match="a/1"):
        committed_offsets(answer, [A0, A1])


def test_an_answer_of_the_first_version_has_no_error_of_its_own() -> None:
    @dataclass(frozen=True, slots=True)
    class First:
        topics: list[tuple[str, list[tuple[int, int, str, int]]]]

    assert committed_offsets(First([("a", [(0, 5, "", 0)])]), [A0]) == {A0: 5}


def test_a_partition_of_which_nothing_is_said_is_an_error() -> None:
    with pytest.raises(KafkaError, match="does not list a/1, b/0"):
        committed_offsets(Answer([("a", [(0, 5, "", 0)])]), [A0, A1, B0])


def test_the_beginning_of_a_log_is_an_offset_like_any_other() -> None:
    assert committed_offsets(Answer([("a", [(0, 0, "", 0)])]), [A0]) == {A0: 0}


def test_the_note_beside_an_offset_tells_topics_of_the_same_name_apart() -> None:
    assert topic_note(OWN) == "topic-id=AQEBAQEBAQEBAQEBAQEBAQ"
    assert topic_note(OTHER) != topic_note(OWN)


def test_where_the_brokers_know_no_ids_nothing_is_noted() -> None:
    assert topic_note(NO_ID) == ""


@pytest.mark.parametrize("note", [topic_note(OWN), "", "what another tool wrote"])
def test_an_offset_counts_that_is_not_known_to_be_another_topic_s(note: str) -> None:
    assert committed_offsets(Answer([("a", [(0, 5, note, 0)])]), [A0], OWN) == {A0: 5}


def test_the_offset_of_a_topic_that_was_deleted_since_counts_for_nothing() -> None:
    answer = Answer([("a", [(0, 5, topic_note(OTHER), 0), (1, 6, topic_note(OWN), 0)])])
    assert committed_offsets(answer, [A0, A1], OWN) == {A1: 6}


def test_where_the_brokers_know_no_ids_any_more_a_noted_offset_counts() -> None:
    assert committed_offsets(Answer([("a", [(0, 5, topic_note(OTHER), 0)])]), [A0], NO_ID) == {A0: 5}
