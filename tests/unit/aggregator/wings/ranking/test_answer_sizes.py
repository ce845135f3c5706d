"""The size of an answer with scores is known before it is computed: never below what is written, and not far above."""

from __future__ import annotations

import pytest

from aggregator.request.request import Options
from aggregator.sources.http.answer import Answer
from aggregator.sources.wire.encode import answer_bytes
from aggregator.sources.wire.values import encode
from aggregator.wings.ranking.http import Classes, PairScores, Ranking
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.scoring import Scoring
from tests.support.fake_source import any_request
from tests.unit.aggregator.sources.test_answer_sizes import INPUTS, completed

SCORING = Scoring(["a text"] * INPUTS)


@pytest.mark.parametrize("returns", [False, True])
def test_a_ranking_is_no_larger_than_was_told_with_and_without_documents(*, returns: bool) -> None:
    scoring = Scoring(["a query"] * INPUTS, ranks=True, return_documents=returns)
    request = completed(Options(dimensions=1), dimensions=1, kind=RANKING, details=scoring)
    written = len(encode(request, "0" * 32, 0.0, as_json=False))
    assert written <= answer_bytes(request, 0) < 3 * written + 1000
    ranking = Ranking("", returns_data=returns)
    assert len(ranking.write(request)) <= ranking.size_bytes(request)


@pytest.mark.parametrize("answer", [PairScores("", "text_2"), Classes("")])
def test_scores_and_classes_are_no_larger_than_was_told(answer: Answer) -> None:
    dimensions = 1 if isinstance(answer, PairScores) else 30
    request = completed(Options(dimensions=dimensions), dimensions=dimensions, kind=RANKING, details=SCORING)
    assert len(answer.write(request)) <= answer.size_bytes(request)


@pytest.mark.parametrize(
    ("answer", "texts", "classes", "is_long"),
    [
        (PairScores("", "text_2"), 256, 1, False),
        (PairScores("", "text_2"), 257, 1, True),
        (Ranking("", returns_data=False), 257, 1, True),
        (Classes(""), 100, 40, False),
        (Classes(""), 100, 41, True),
    ],
)
def test_many_scores_are_written_on_a_thread(answer: Answer, texts: int, classes: int, is_long: bool) -> None:
    details = Scoring(["a text"] * texts)
    request = any_request(*["a"] * texts, options=Options(dimensions=classes), kind=RANKING, details=details)
    assert answer.takes_long(request) is is_long
