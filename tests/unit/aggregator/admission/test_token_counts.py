"""Of a long text no more is counted than can matter, and what is told of it is what is known."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from aggregator.admission.enqueue import count_long, count_together, is_long, split_long
from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code
from aggregator.request.kind import Counted
from aggregator.request.request import Failure, Options, Request
from aggregator.scheduler.dispatcher import DispatchPolicy
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import any_request
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, FakeCounting

CALL = 1 << 16
"""Characters of one call."""


class Intake:
    """One revision's tokenizer, and what it is asked."""

    def __init__(self, *, takes: int = 32) -> None:
        self.counting = FakeCounting(FakeTokenizer())
        description = replace(DESCRIPTION, max_input_tokens=takes)
        self.model_revision = ModelRevision(description, FakeTokenizer(), self.counting, DispatchPolicy())

    def long(self, *texts: str, truncate: int = pb.TRUNCATE_NONE) -> list[Counted]:
        return asyncio.run(count_long(self.model_revision, request(*texts, truncate=truncate), texts))

    def together(self, *texts: str) -> list[Counted]:
        return asyncio.run(count_together(self.model_revision, texts))

    @property
    def read(self) -> list[list[int]]:
        """The characters of each text of each call."""
        return [[len(text) for text in call] for call in self.counting.calls]


def request(*texts: str, truncate: int = pb.TRUNCATE_NONE) -> Request:
    return any_request(*texts, options=Options(truncate=truncate))


def told(counted: Counted) -> str:
    assert isinstance(counted, Failure)
    assert counted.code is Code.OUT_OF_RANGE
    return counted.message.partition(":")[0]


def ids(counted: Counted) -> list[int]:
    assert isinstance(counted, bytes)
    found: list[int] = np.frombuffer(counted, "<i4").tolist()
    return found


def test_a_text_surely_too_long_is_refused_uncounted_and_others_counted() -> None:
    intake = Intake()
    refused, counted = intake.long("x" * (CALL + 1), "9 " * 30)
    assert told(refused) == "more than 65536 characters"
    assert ids(counted) == [1, *[9] * 30, 2]
    assert intake.read == [[60]]


def test_of_a_model_that_takes_much_longer_texts_are_counted() -> None:
    intake = Intake(takes=4096)
    assert [told(each) for each in intake.long("x" * 131_073)] == ["more than 131072 characters"]
    assert len(ids(*intake.long("x" * 131_072))) == 3
    assert intake.read == [[131_072]]


@pytest.mark.parametrize(
    ("truncate", "first", "last"), [(pb.TRUNCATE_END, "start", "middle"), (pb.TRUNCATE_START, "middle", "end")]
)
def test_a_text_is_read_from_the_side_that_is_kept(truncate: int, first: str, last: str) -> None:
    intake = Intake()
    filling = "x" * 50_000
    intake.long(f"start{filling}middle{filling}end", truncate=truncate)
    [[read]] = intake.counting.calls
    assert len(read) == CALL
    assert (first in read, last in read) == (True, True)
    assert ("start" in read, "end" in read) == (truncate == pb.TRUNCATE_END, truncate == pb.TRUNCATE_START)


def test_no_more_is_read_of_an_untokenizable_text_and_others_are_counted() -> None:
    intake = Intake()
    broken, fine = intake.long("uncountable " + "9 " * 10_000, "9 " * 10_000, truncate=pb.TRUNCATE_END)
    assert isinstance(broken, Failure)
    assert broken.code is Code.INVALID_ARGUMENT
    assert set(ids(fine)[1:-1]) == {9}
    assert sum("uncountable" in text for call in intake.counting.calls for text in call) == 2  # together, and alone
    assert all(intake.counting.long)
    assert sum(len(call) == 1 for call in intake.counting.calls) == 2


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ((100, 200), [[100, 200]]),
        ((200, CALL - 200), [[200, CALL - 200]]),
        ((200, CALL - 199), [[200], [CALL - 199]]),
        ((CALL, 50, CALL - 50, 9), [[CALL], [50, CALL - 50], [9]]),
    ],
)
def test_texts_of_one_request_go_together_in_calls_of_a_bounded_size(
    sizes: tuple[int, ...], calls: list[list[int]]
) -> None:
    intake = Intake(takes=CALL // 8)
    counted = intake.long(*(f"{number} ".ljust(size) for number, size in enumerate(sizes)))
    assert intake.read == calls
    assert intake.counting.long == [True] * len(calls)
    assert [ids(each)[1] for each in counted] == [*range(len(sizes))]


def test_short_texts_hold_up_those_counted_with_them_no_longer_than_that() -> None:
    intake = Intake()
    assert [ids(each) for each in intake.together("5", "6 7")] == [[1, 5, 2], [1, 6, 7, 2]]
    assert intake.counting.long == [False]


def test_requests_are_counted_together_up_to_a_bound_and_long_ones_alone() -> None:
    requests = [request("x" * size) for size in (CALL // 4, CALL // 4, CALL // 4 + 1, CALL // 4, CALL // 4, 1)]
    requests.append(request("x" * (CALL // 4), "y"))
    portions, long = split_long(requests)
    assert [[len(each.inputs[0]) for each in portion] for portion in portions] == [[CALL // 4] * 4, [1]]
    assert long == [requests[2], requests[6]]
    least = [request("") for _ in range(2)]
    assert split_long(least) == ([least], [])
    short, longer = requests[0], requests[2]
    assert [is_long(each) for each in ([longer], [short], [short, longer], [longer, longer])] == [True, *[False] * 3]
