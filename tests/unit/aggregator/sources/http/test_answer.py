"""A priority is a word, or a number of which lower ones are served first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.answer import AskedPriority, priority_of
from aggregator.sources.wire import message

WORDS = ["interactive", "default", "background"]


def served(asked: AskedPriority, default: Priority) -> Priority:
    return message.class_of(priority_of(asked, default), default)


@pytest.mark.parametrize("default", Priority)
def test_a_lower_number_is_never_served_later(default: Priority) -> None:
    numbers = [-(2**80), -1, 0, 1, 2, 999, 2**80]
    assert all(served(first, default) <= served(second, default) for first, second in pairwise(numbers))


@pytest.mark.parametrize("default", Priority)
def test_none_and_0_are_the_default_and_a_word_is_its_class(default: Priority) -> None:
    assert {served(None, default), served(0, default)} == {default}
    assert [served(word, default).name.lower() for word in WORDS] == WORDS  # type: ignore[arg-type]


def test_numbers_reach_all_classes_beside_an_interactive_default() -> None:
    assert [served(number, Priority.INTERACTIVE).name.lower() for number in (-1, 1, 2)] == WORDS
