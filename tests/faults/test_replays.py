"""What the commit before a kill knew of a record holds for its replay, and nothing else does."""

from __future__ import annotations

import pytest

from aggregator.sources.kafka.answered import EXPIRED, Answer, Answered, Span
from tests.faults.checker import Fate, Said
from tests.faults.replays import Replays, replays
from tests.faults.steady_load import Intent
from tests.faults.topic_logs import Commit

pytestmark = pytest.mark.short

_OLD = Answer("model", "old")


def replayed(
    before: Said, after: Said, *spans: Span, highest: int = 9, kills_ms: tuple[float, ...] = (200.0,)
) -> Replays:
    """Of a record at offset 5, with a commit of offset 2 just before the kill, and one that knows nothing behind it."""
    fate = Fate("topic", 0, 5, 0, 0, b"", Intent(), said=[before, after])
    told = Answered(highest, spans).metadata(2)
    commits = [Commit("topic", 0, 2, 190, told), Commit("topic", 0, 2, 210)]
    return replays({b"key": fate}, commits, kills_ms, "model")


def said(at_ms: int, code: str = "OK", model_revision: str = "old", *, replay: bool = True) -> Said:
    return Said(at_ms, code, model_revision, replay)


@pytest.mark.parametrize(
    ("after", "answer", "broken"),
    [
        (said(300), _OLD, ""),
        (said(300, "UNAVAILABLE", ""), _OLD, ""),
        (said(300, replay=False), _OLD, "does not say that it may be a replay"),
        (said(300, "DEADLINE_EXCEEDED", ""), _OLD, "says that its deadline has passed, and it had not"),
        (said(300, model_revision="new"), _OLD, "is of revision new, and old had answered it"),
        (said(300, "DEADLINE_EXCEEDED", ""), EXPIRED, ""),
        (said(300), EXPIRED, "says OK, and its deadline had passed"),
    ],
)
def test_a_replay_keeps_to_what_was_known(after: Said, answer: Answer, broken: str) -> None:
    found = replayed(said(100), after, Span(4, 6, answer))
    assert found.known == 1
    assert found.broken == ([f"the reply to b'key' {broken}"] if broken else [])


def test_nothing_is_known_of_what_the_last_commit_does_not_name() -> None:
    other = said(300, model_revision="new", replay=False)
    assert replayed(said(100), other, highest=4) == Replays(changed=1)
    assert replayed(said(100), other, Span(4, 6, _OLD), kills_ms=()) == Replays(changed=1)
    assert replayed(said(100), other, Span(4, 6, _OLD), kills_ms=(150.0, 200.0)) == Replays(changed=1)
    assert replayed(said(100), other, Span(4, 6, _OLD), kills_ms=(200.0, 250.0)) == Replays(changed=1)
