"""Hold replies that came again after a kill against what the commits before it knew of the first ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from aggregator.errors import Code
from aggregator.sources.kafka.answered import EXPIRED, Answer, Answered
from tests.faults.checker import Fate, Said
from tests.faults.topic_logs import Commit

_OK, _EXPIRED = Code.OK.name, Code.DEADLINE_EXCEEDED.name


@dataclass
class Replays:
    """What became of the replies that came again.

    `known`: the last commit before the kill named their record; `changed`: their code or revision is not the one of the
    reply before; `broken` names, in a sentence each, what was known and not kept.
    """

    known: int = 0
    changed: int = 0
    broken: list[str] = field(default_factory=list[str])


def replays(fates: Mapping[bytes, Fate], commits: Sequence[Commit], kills_ms: Sequence[float], model: str) -> Replays:
    """The replays of records that ask for `model`, by an application that was killed at these times.

    Between two replies to one record lies the kill of the member that gave the first. Which kill that was is unknown: a
    replay is broken that keeps to what the last commit before none of them knew.
    """
    found = Replays()
    logs: dict[int, list[Commit]] = {}
    for commit in commits:
        logs.setdefault(commit.partition, []).append(commit)
    for key, fate in fates.items():
        said = sorted(fate.said)
        for before, after in pairwise(said):
            found.changed += (before.code, before.model_revision) != (after.code, after.model_revision)
            kills = [kill for kill in kills_ms if before.at_ms <= kill <= after.at_ms]
            answers = [_known(logs.get(fate.partition, []), kill, fate.offset, model) for kill in kills]
            wrongs = [_wrong(after, answer) for answer in answers if answer is not None]
            if wrongs and len(wrongs) == len(answers):
                found.known += 1
                if all(wrongs):
                    found.broken.append(f"the reply to {key!r} {'; '.join(wrongs[-1])}")
    return found


def _known(log: Sequence[Commit], kill_ms: float, offset: int, model: str) -> Answer | None:
    """What the last commit before a kill says of a record; None: nothing."""
    place = bisect_left(log, kill_ms, key=lambda commit: commit.at_ms)
    if not place or log[place - 1].offset > offset:
        return None
    commit = log[place - 1]
    answered = Answered.of(commit.metadata, commit.offset)
    if answered.expired(offset):
        return EXPIRED
    return Answer(model, answered.model_revision(offset, model)) if offset <= answered.highest else None


def _wrong(said: Said, known: Answer) -> list[str]:
    wrong = [] if said.replay else ["does not say that it may be a replay"]
    if known == EXPIRED:
        return wrong if said.code == _EXPIRED else [*wrong, f"says {said.code}, and its deadline had passed"]
    if said.code == _EXPIRED:
        wrong.append("says that its deadline has passed, and it had not")
    if said.code == _OK and known.model_revision not in {"", said.model_revision}:
        wrong.append(f"is of revision {said.model_revision}, and {known.model_revision} had answered it")
    return wrong
