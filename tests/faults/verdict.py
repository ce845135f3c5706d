"""What a row came to, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

from tests.faults.checker import Checker, Fate, examples, largest_regression
from tests.faults.topic_logs import Commit


@dataclass(slots=True)
class Timeline:
    """When the fault came and when it was over, by the wall clock in milliseconds."""

    fault_ms: float = 0.0
    healed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of one row; `problems` are what must never be, each in a sentence.

    `recovery_s`: from the end of the fault until every partition has had a query, sent after that, answered; `gap_s`:
    the longest time without any reply; the percentiles are of queries sent during the fault and recovery, and after.
    """

    sent: int
    answered: int
    dead_lettered: int
    lost: int
    wrong: int
    duplicates: int
    twins_alike: bool
    early_commits: int
    regression: int
    recovery_s: float
    gap_s: float
    p99_during_s: float
    p99_after_s: float
    peak_mib: float
    problems: tuple[str, ...] = field(default=())

    @property
    def duplicates_share(self) -> float:
        """Of all that was sent."""
        return self.duplicates / max(1, self.sent)

    def with_more(self, *problems: str) -> Verdict:
        """The same with further problems."""
        return replace(self, problems=(*self.problems, *problems))

    def figures(self) -> dict[str, Any]:
        """All but the sentences, for a file."""
        return {name: value for name, value in asdict(self).items() if name != "problems"}


def judge(checker: Checker, commits: Sequence[Commit], unseen: Sequence[bytes], line: Timeline, peak: float) -> Verdict:
    """The verdict on all that `checker` took in.

    `unseen`: records that the broker acknowledged to their sender, and that are not in the requests topic.
    """
    fates = list(checker.fates.values())
    lost = [*checker.lost, *unseen]
    early, regression = checker.early_commits(commits), largest_regression(commits)
    problems: list[str] = []
    for found, what in ((lost, "lost"), (checker.wrong, "wrong"), (checker.unlike_twins, "unlike their twins")):
        if found:
            problems.append(f"{what}: {examples(found)}")
    if early:
        problems.append(f"{early} offsets were committed before their outcome was written")
    recovery_s = _recovery_s(fates, line)
    after_ms = line.healed_ms + recovery_s * 1000
    return Verdict(
        sent=len(fates) + len(unseen),
        answered=sum(fate.replies > 0 for fate in fates),
        dead_lettered=sum(fate.letters > 0 for fate in fates),
        lost=len(lost),
        wrong=len(checker.wrong),
        duplicates=checker.duplicates,
        twins_alike=not checker.unlike_twins,
        early_commits=early,
        regression=regression,
        recovery_s=recovery_s,
        gap_s=_gap_s(sorted(checker.reply_times_ms)),
        p99_during_s=_p99_s([fate for fate in fates if line.fault_ms <= fate.sent_ms <= after_ms]),
        p99_after_s=_p99_s([fate for fate in fates if fate.sent_ms > after_ms]),
        peak_mib=peak,
        problems=tuple(problems),
    )


def _recovery_s(fates: Sequence[Fate], line: Timeline) -> float:
    if not line.healed_ms:
        return 0.0
    first: dict[int, float] = {}
    for fate in fates:
        if fate.sent_ms >= line.healed_ms and fate.replies:
            first[fate.partition] = min(first.get(fate.partition, inf), fate.replied_ms)
    return max(0.0, (max(first.values(), default=line.healed_ms) - line.healed_ms) / 1000)


def _gap_s(times_ms: Sequence[int]) -> float:
    return max((late - early for early, late in pairwise(times_ms)), default=0) / 1000


def _p99_s(fates: Sequence[Fate]) -> float:
    waits = sorted(fate.replied_ms - fate.sent_ms for fate in fates if fate.replies)
    return waits[int(0.99 * (len(waits) - 1))] / 1000 if waits else 0.0
