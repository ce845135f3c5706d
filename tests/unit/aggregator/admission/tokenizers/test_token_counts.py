"""Of a long text no more is counted than can matter, and what is told of it is what is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from typing_extensions import override

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.tokenizers.token_counts import Counted, apart, count_long, count_together
from aggregator.admission.tokenizers.tokenizer import TokenBatch
from aggregator.errors import Code
from aggregator.request import Failure, Options, Request
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb
from tests.fakes.sources import GRPC, AnyOrigin
from tests.fakes.tokenizers import FakeTokenizer
from tests.fakes.world import DESCRIPTION, FakeCounting

CALL = 1 << 16
"""Characters of one call."""


class Noting(FakeCounting):
    """Notes the texts of each call, and whether they were called long."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer())
        self.calls: list[list[str]] = []
        self.long: list[bool] = []

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        self.calls.append([*texts])
        self.long.append(long)
        return await super().count(texts, long=long)


class Desk:
    """One revision's tokenizer, and what it is asked."""

    def __init__(self, *, takes: int = 32) -> None:
        self.counting = Noting()
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
    return Request(
        "q",
        "m",
        "",
        [*texts],
        Options(truncate=truncate),
        Priority.DEFAULT,
        GRPC,
        "",
        0.0,
        inf,
        AnyOrigin(),
        [None] * len(texts),
        len(texts),
    )


def told(counted: Counted) -> str:
    assert isinstance(counted, Failure)
    assert counted.code is Code.OUT_OF_RANGE
    return counted.message.partition(":")[0]


def ids(counted: Counted) -> list[int]:
    assert isinstance(counted, bytes)
    found: list[int] = np.frombuffer(counted, "<i4").tolist()
    return found


def test_a_text_of_which_just_as_many_tokens_are_read_as_the_model_takes_is_read_on() -> None:
    [one_more] = Desk().long("9 " * 30 + " " * 1000 + "9")
    assert ids(one_more) == [1, *[9] * 31, 2]
    [no_more] = Desk().long("9 " * 30 + " " * 1000)
    assert ids(no_more) == [1, *[9] * 30, 2]


def test_no_more_tokens_are_told_than_are_known() -> None:
    [counted] = Desk().long("9 " * 29 + "x" * 100_000)
    assert told(counted) == f"more than {57 + CALL} characters, of which no more are read"


def test_a_model_that_takes_much_has_much_read_of_a_text_without_places_to_be_cut() -> None:
    [counted] = Desk(takes=4096).long("x" * 1_000_000)
    assert told(counted) == "more than 131072 characters, of which no more are read"


@pytest.mark.parametrize(
    ("truncate", "first", "last"), [(pb.TRUNCATE_END, "start", "middle"), (pb.TRUNCATE_START, "middle", "end")]
)
def test_a_text_without_places_to_be_cut_is_read_from_the_side_that_is_kept(
    truncate: int, first: str, last: str
) -> None:
    desk = Desk()
    filling = "x" * 50_000
    desk.long(f"start{filling}middle{filling}end", truncate=truncate)
    [[read]] = desk.counting.calls
    assert len(read) == CALL
    assert (first in read, last in read) == (True, True)
    assert ("start" in read, "end" in read) == (truncate == pb.TRUNCATE_END, truncate == pb.TRUNCATE_START)


def test_of_a_text_that_the_tokenizer_cannot_take_no_more_is_read_and_the_others_are_counted() -> None:
    desk = Desk()
    broken, fine = desk.long("uncountable " + "9 " * 10_000, "9 " * 10_000, truncate=pb.TRUNCATE_END)
    assert isinstance(broken, Failure)
    assert broken.code is Code.INVALID_ARGUMENT
    assert set(ids(fine)[1:-1]) == {9}
    assert sum("uncountable" in text for call in desk.counting.calls for text in call) == 2  # together, and alone
    assert all(desk.counting.long)
    assert sum(len(call) == 1 for call in desk.counting.calls) == 2


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
    desk = Desk(takes=CALL // 8)
    counted = desk.long(*(f"{number} ".ljust(size) for number, size in enumerate(sizes)))
    assert desk.read == calls
    assert desk.counting.long == [True] * len(calls)
    assert [ids(each)[1] for each in counted] == [*range(len(sizes))]


def test_short_texts_hold_up_whom_they_are_counted_with_no_longer_than_that() -> None:
    desk = Desk()
    assert [ids(each) for each in desk.together("5", "6 7")] == [[1, 5, 2], [1, 6, 7, 2]]
    assert desk.counting.long == [False]


def test_requests_are_counted_together_up_to_a_bound_and_long_ones_by_themselves() -> None:
    requests = [request("x" * size) for size in (CALL // 4, CALL // 4, CALL // 4 + 1, CALL // 4, CALL // 4, 1)]
    requests.append(request("x" * (CALL // 4), "y"))
    portions, long = apart(requests)
    assert [[len(each.inputs[0]) for each in portion] for portion in portions] == [[CALL // 4] * 4, [1]]
    assert long == [requests[2], requests[6]]
    least = [request("") for _ in range(2)]
    assert apart(least) == ([least], [])
