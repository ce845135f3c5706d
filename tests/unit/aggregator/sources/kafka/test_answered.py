"""What a commit says of the records behind it, and what a replay makes of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.kafka.answered import EXPIRED, Answer, Answered, Span, spans
from aggregator.sources.kafka.offsets import CommittedOffset, InFlightRecord
from tests.support.records import record_at

OLD, NEW, OTHER = Answer("m", "old"), Answer("m", "new"), Answer("n", "one")


def delivered(committed_offset: CommittedOffset, *offsets: int) -> list[InFlightRecord]:
    return [committed_offset.deliver(record_at(offset)) for offset in offsets]


def replayed(committed_offset: CommittedOffset) -> Answered:
    """What the next owner of the partition reads in its commit."""
    return Answered.of(committed_offset.metadata, committed_offset.position)


def test_nothing_behind_the_position_needs_no_words() -> None:
    committed_offset = CommittedOffset("in", 0, 10)
    for record in delivered(committed_offset, 10, 11):
        committed_offset.complete(record, OLD)
    assert committed_offset.metadata == ""
    assert replayed(committed_offset) == Answered()


def test_records_up_to_the_highest_completed_one_may_have_been_answered() -> None:
    committed_offset = CommittedOffset("in", 0, 10)
    records = delivered(committed_offset, 10, 11, 12, 13)
    committed_offset.complete(records[2], OLD)
    before = replayed(committed_offset)
    assert [offset <= before.highest for offset in (10, 11, 12, 13)] == [True, True, True, False]
    assert [before.model_revision(offset, "m") for offset in (10, 12, 13)] == ["old", "old", ""]
    assert before.model_revision(12, "n") == ""
    assert not before.expired(12)


def test_each_record_goes_back_to_the_revision_that_answered_it() -> None:
    committed_offset = CommittedOffset("in", 0, 0)
    answers = [None, OLD, OTHER, OLD, NEW, OTHER, None, NEW, OLD, NEW]
    records = delivered(committed_offset, *range(10))
    for record, answer in list(zip(records, answers, strict=True))[1:]:
        committed_offset.complete(record, answer)
    before = replayed(committed_offset)
    for offset, answer in enumerate(answers):
        if answer is not None:
            assert before.model_revision(offset, answer.model) == answer.model_revision, offset
    assert before.model_revision(6, "m") == "new", "as its neighbours on both sides"
    assert before.model_revision(0, "m") == "", "nothing is known before the first"


def test_answers_that_the_position_passed_are_forgotten() -> None:
    committed_offset = CommittedOffset("in", 0, 0)
    records = delivered(committed_offset, *range(4))
    for record in (records[1], records[2], records[0]):
        committed_offset.complete(record, OLD)
    assert committed_offset.position == 3
    assert replayed(committed_offset) == Answered()


def test_only_the_very_records_that_expired_expire_again() -> None:
    committed_offset = CommittedOffset("in", 0, 0)
    records = delivered(committed_offset, *range(6))
    for place, answer in ((1, EXPIRED), (3, EXPIRED), (4, EXPIRED), (5, OLD)):
        committed_offset.complete(records[place], answer)
    before = replayed(committed_offset)
    assert [before.expired(offset) for offset in range(6)] == [False, True, False, True, True, False]


def test_a_second_replay_still_knows_what_the_first_had_not_come_to() -> None:
    first = CommittedOffset("in", 0, 0)
    records = delivered(first, *range(10))
    for place in (3, 8):
        first.complete(records[place], OLD)
    second = CommittedOffset("in", 0, 0, first.metadata)
    assert second.metadata != ""
    again = delivered(second, *range(12))
    assert [record.replay for record in again] == [True] * 9 + [False] * 3
    for place in (0, 11):
        second.complete(again[place], NEW)
    before = replayed(second)
    assert (second.position, before.highest) == (1, 11)
    assert [before.model_revision(offset, "m") for offset in (3, 8, 11)] == ["old", "old", "new"]
    for record in again:
        second.complete(record, NEW)
    assert second.metadata == ""


def test_an_outcome_that_says_nothing_of_a_replay_still_counts_as_one() -> None:
    committed_offset = CommittedOffset("in", 0, 0)
    records = delivered(committed_offset, 0, 1)
    committed_offset.complete(records[1])
    assert replayed(committed_offset) == Answered(1)


def test_too_many_spans_leave_out_those_of_the_lowest_offsets() -> None:
    committed_offset = CommittedOffset("in", 0, 10**15)
    records = delivered(committed_offset, *(10**15 + number for number in range(3000)))
    for number, record in enumerate(records[1:]):
        committed_offset.complete(record, (OLD, NEW)[number % 2])
    assert len(committed_offset.metadata) <= 3000
    before = replayed(committed_offset)
    assert before.model_revision(10**15 + 2999, "m") == OLD.model_revision
    assert before.model_revision(10**15 + 1, "m") == ""
    assert before.highest == 10**15 + 2999


@pytest.mark.parametrize("revisions", [(OLD, NEW), (OLD, OTHER, NEW)])
def test_only_the_spans_that_a_commit_may_carry_are_made(revisions: tuple[Answer, ...]) -> None:
    looked = 0

    def answers() -> Iterator[tuple[int, Answer]]:
        nonlocal looked
        for looked in range(1, 25_001):
            yield 25_000 - looked, revisions[looked % len(revisions)]

    found = spans(answers())
    assert looked < 1000
    metadata = Answered(25_000, tuple(sorted(found))).metadata(0)
    assert 2000 < len(metadata) <= 3000
    assert len(Answered.of(metadata, 0).spans) > 100


def test_a_commit_is_put_in_words_a_few_times_whatever_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    really_dumps = json.dumps

    def dumps(said: dict[str, Any], **options: Any) -> str:
        written.append(len(said["spans"]))
        return really_dumps(said, **options)

    monkeypatch.setattr(json, "dumps", dumps)
    many = Answered(50_000, tuple(Span(place, place, (OLD, NEW)[place % 2]) for place in range(25_000)))
    assert len(many.metadata(0)) <= 3000
    assert sum(written) < 2000


def test_names_too_long_to_be_carried_leave_the_highest_offset() -> None:
    committed_offset = CommittedOffset("in", 0, 0)
    records = delivered(committed_offset, 0, 1)
    committed_offset.complete(records[1], Answer("m" * 5000, "r"))
    assert replayed(committed_offset) == Answered(1)


@pytest.mark.parametrize(
    "metadata",
    [
        "", "words", "[]", "1", "null", "{}", '{"v":2,"highest":9}', '{"v":1}',
        '{"v":1,"highest":"x","answers":[],"spans":[]}',
        '{"v":1,"highest":3,"answers":[["m"]],"spans":[]}', '{"v":1,"highest":3,"answers":[],"spans":[[0,1,0]]}',
        '{"v":1,"highest":3,"answers":[["m","r"]],"spans":[[0,"1",0]]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_metadata_of_others_says_nothing(metadata: str) -> None:
    assert Answered.of(metadata, 5) == Answered()


@given(st.text())
def test_no_metadata_whatever_stops_a_partition(metadata: str) -> None:
    CommittedOffset("in", 0, 5, metadata)


@given(st.lists(st.sampled_from([None, OLD, NEW, OTHER, EXPIRED]), min_size=1, max_size=60), st.integers(0, 10**12))
def test_every_completed_record_is_known_for_what_it_was(answers: list[Answer | None], start: int) -> None:
    committed_offset = CommittedOffset("in", 0, start)
    records = delivered(committed_offset, *range(start, start + len(answers)))
    for record, answer in zip(records, answers, strict=True):
        if answer is not None:
            committed_offset.complete(record, answer)
    before = replayed(committed_offset)
    for offset, answer in enumerate(answers, start):
        if offset < committed_offset.position:
            continue
        assert before.expired(offset) == (answer == EXPIRED)
        if answer not in {None, EXPIRED}:
            assert answer is not None
            assert before.model_revision(offset, answer.model) == answer.model_revision
    assert not committed_offset.metadata or json.loads(committed_offset.metadata)["v"] == 1
    assert all(isinstance(span, Span) for span in before.spans)
