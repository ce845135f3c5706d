"""A text as it grows: stop strings as vLLM has them, nothing handed on that may be cut, and nothing twice."""

from __future__ import annotations

import pytest

from aggregator.wings.generation.generation import Generation, logprobs_of
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_tokenizer import Pieces


def text(*pieces: str, **sampling: object) -> Generation:
    begun = Generation(pb.Sampling(**sampling))  # type: ignore[arg-type]
    begun.begin("r1", b"\x01\x00\x00\x00", Pieces(pieces.__getitem__))
    return begun


def test_new_text_is_read_once_with_the_index_of_its_first_token() -> None:
    growing = text("a", "b", "c")
    growing.extend([0, 1], ())
    assert growing.read_new() == (0, "ab", growing.token_ids[:2], [])
    growing.extend([2], ())
    index, characters, token_ids, _ = growing.read_new()
    assert (index, characters, list(token_ids)) == (2, "c", [2])
    assert growing.read_new()[1] == ""


@pytest.mark.parametrize(
    ("pieces", "stops", "told"),
    [
        (("ab", "c", "d"), ("bc",), "a"),  # over two tokens
        (("xbc", "d"), ("c", "bc"), "xb"),  # both end there: the first of the list
        (("x", "bca"), ("a", "bc"), "x"),  # the one that ends first
    ],
)
def test_it_ends_before_the_stop_string_that_ends_first(
    pieces: tuple[str, ...], stops: tuple[str, ...], told: str
) -> None:
    growing = text(*pieces, stop=stops)
    ended = False
    for token in range(len(pieces)):
        ended = ended or growing.extend([token], ())
    assert ended
    assert growing.finish_reason == pb.FINISH_REASON_STOP
    assert growing.read_new()[1] == told


def test_the_possible_start_of_a_stop_string_waits() -> None:
    growing = text("a", "E", "N", "x", "D", stop=["END"])
    growing.extend([0], ())
    growing.extend([1], ())
    growing.extend([2], ())
    assert growing.read_new()[1] == "a"
    growing.extend([3], ())
    assert growing.read_new()[1] == "ENx"


def test_text_that_waited_comes_at_the_end() -> None:
    growing = text("a", "E", stop=["END"])
    growing.extend([0, 1], ())
    growing.end(pb.FINISH_REASON_LENGTH)
    assert growing.read_new()[1] == "aE"
    assert growing.finish_reason == pb.FINISH_REASON_LENGTH


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    growing = text("a", "X", "b", "X", stop=["X"], min_tokens=2)
    assert [growing.extend([token], ()) for token in range(4)] == [False, False, False, True]
    assert growing.read_new()[1] == "aXb"


def test_stop_tokens_are_tokens_and_not_text() -> None:
    growing = text("a", "</s>")
    growing.extend([0, 1], (), stop_tokens=1)
    growing.end(pb.FINISH_REASON_STOP)
    assert growing.read_new()[1] == "a"
    assert list(growing.token_ids) == [0, 1]


def test_it_restarts_only_while_nothing_was_sent() -> None:
    growing = text("a", "b")
    growing.extend([0], ())
    assert growing.restart()
    assert not growing.token_ids
    growing.extend([1], ())
    growing.read_new()
    assert not growing.restart()


def test_log_probabilities_come_with_their_alternatives_in_order() -> None:
    told = logprobs_of(3, [7, 9, 7, 1, 2, 3], [-2.0, -0.5, -2.0, -1.0, -1.5, -3.0], [2, 1])
    assert [(each.token.token_id, each.token.rank) for each in told] == [(7, 2), (1, 1)]
    assert [(one.token_id, one.rank) for one in told[0].alternatives] == [(9, 1), (7, 2)]
