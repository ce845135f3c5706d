"""The records behind a committed offset that may have been answered, and how: what a commit's metadata carries.

A record that was answered and not committed is read again. Up to the highest completed offset of the last commit it may
have its answer, so that a replay of it is not decided by the clock and the servers of now.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_VERSION = 1
_MOST_BYTES = 3000
"""A broker takes 4,096 (offset.metadata.max.bytes)."""
_MOST_SPANS = _MOST_BYTES // len("[0,0,0],")
"""More have no room, however short they are."""


class Answer(NamedTuple):
    """A record was answered: with this revision of the model that it asks for, or that its deadline had passed."""

    model: str
    model_revision: str


EXPIRED = Answer("", "")


class Span(NamedTuple):
    """Records from the offset `first` to `last` that have one answer, those of other models between them aside."""

    first: int
    last: int
    answer: Answer


def spans(answers: Iterable[tuple[int, Answer | None]]) -> list[Span]:
    """The spans of records from the highest offset down, no more than a commit may carry.

    None: not completed, or with an answer that says nothing. Any other record ends a span of expired ones: it might not
    have expired.
    """
    found: list[tuple[list[int], Answer]] = []
    open_spans: dict[str, tuple[list[int], Answer]] = {}
    expired = EXPIRED.model
    for offset, answer in answers:
        if answer is None:
            open_spans.pop(expired, None)
            continue
        model = answer.model
        if model != expired:
            open_spans.pop(expired, None)
        span = open_spans.get(model)
        if span is not None and span[1] == answer:
            span[0][0] = offset
            continue
        if len(found) == _MOST_SPANS:
            break
        open_spans[model] = span = [offset, offset], answer
        found.append(span)
    return [Span(first, last, answer) for (first, last), answer in found]


@dataclass(frozen=True, slots=True)
class Answered:
    """The records up to `highest` may have been answered; `spans` in the order of their first offsets."""

    highest: int = -1
    spans: tuple[Span, ...] = ()

    def metadata(self, position: int) -> str:
        """What the commit of `position`, which is not behind `highest`, carries.

        Where there are too many spans, those of the lowest offsets are left out: their revision is unknown.
        """
        kept = [span for span in self.spans if span.last >= position][-_MOST_SPANS:]
        while True:
            answers = list(dict.fromkeys(span.answer for span in kept))
            places = {answer: place for place, answer in enumerate(answers)}
            ranges = [[max(0, first - position), last - position, places[answer]] for first, last, answer in kept]
            said = {"v": _VERSION, "highest": self.highest, "answers": answers, "spans": ranges}
            text = json.dumps(said, ensure_ascii=True, separators=(",", ":"))
            if len(text) <= _MOST_BYTES or not kept:
                return text
            kept = kept[(len(kept) + 3) // 4 :]

    @classmethod
    def of(cls, metadata: str, position: int) -> Answered:
        """What a commit says; nothing if another program, or another version, wrote its metadata."""
        try:
            said = json.loads(metadata) if metadata else {}
            if said.get("v") != _VERSION:
                return cls()
            answers = [Answer(str(model), str(revision)) for model, revision in said["answers"]]
            found = [Span(position + first, position + last, answers[place]) for first, last, place in said["spans"]]
            return cls(int(said["highest"]), tuple(sorted(found)))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
            return cls()

    def expired(self, offset: int) -> bool:
        """Whether this very record was answered that its deadline had passed."""
        return any(span.answer == EXPIRED for span in self._around(offset))

    def model_revision(self, offset: int, model: str) -> str:
        """The revision that answered the record, or its neighbours on both sides; empty if that is unknown."""
        return next((span.answer.model_revision for span in self._around(offset) if span.answer.model == model), "")

    def _around(self, offset: int) -> list[Span]:
        """The spans that hold an offset, the latest first."""
        if offset > self.highest:
            return []
        end = bisect_right(self.spans, offset, key=lambda span: span.first)
        return [span for span in reversed(self.spans[:end]) if span.last >= offset]
