"""The bundled questions."""

import pytest

from loadtest.questions import bundled_questions, different


@pytest.mark.parametrize("size", [1, 3000, 4500, 20_000])
def test_as_many_different_questions_are_asked_as_are_wanted(size: int) -> None:
    questions = bundled_questions()
    texts = different(questions, size)
    assert (len(texts), len(set(texts))) == (size, size)
    assert texts[: len(questions)] == questions[:size]
