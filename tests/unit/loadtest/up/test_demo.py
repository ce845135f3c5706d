"""The demonstration's load."""

import pytest

from loadtest.questions import bundled_questions
from loadtest.up.demo import burst_of


@pytest.mark.parametrize("size", [1, 3000, 4500, 20_000])
def test_a_burst_of_any_size_has_different_questions(size: int) -> None:
    texts = burst_of(bundled_questions(), size)
    assert (len(texts), len(set(texts))) == (size, size)
