"""State the problems and the bottleneck in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import ceil

from aggregator.observability.metrics import Totals
from aggregator.request.request import Backlog

_MOST = 0.8
"""A state that holds for this share of the time, or holds this share of the tokens, is the bottleneck."""
SLOW = 2.0
"""A server that runs so many times slower than the curve that it measured is named; noise stays well below."""


class Runbook(StrEnum):
    """The headings of docs/runbook.md that a problem leads to."""

    NO_MODEL_SERVER = "TokenbatchNoModelServer"
    MODEL_SERVER = "A model server dies, hangs or is slow"
    REPLICAS_SHORT = "TokenbatchReplicasShort"
    BROKER = "No broker answers"
    BACK_PRESSURE = "Partitions wait for the queue"
    LAG = "TokenbatchLagGrows"
    SLOW = "TokenbatchSlow"
    RECORDS_LOST = "TokenbatchRecordsLost"
    DEAD_LETTERS = "TokenbatchDeadLetters"
    OVERLOAD = "The load exceeds the capacity"
    ERRORS = "TokenbatchErrors"
    COMMITS = "TokenbatchCommitsFail"
    CLOCKS = "TokenbatchClockSkew"


def anchor(heading: str) -> str:
    """A heading, as links name it."""
    return "".join(each for each in heading.lower() if each.isalnum() or each in "_ -").replace(" ", "-")


class Severity(Enum):
    """Whether somebody has to do something about it now."""

    PROBLEM = "problem"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Scaling:
    """The terms of the scaler's formula for one model; `required` is None until a server's throughput is known."""

    model: str
    arriving_tokens_per_s: float
    backlog_tokens: float
    pod_tokens_per_s: float | None
    memory_pods: float
    required: float | None
    serving: int
    pending: int

    @property
    def missing(self) -> int:
        """Model servers that are required and do not serve."""
        return 0 if self.required is None else max(0, ceil(self.required - 1e-9) - self.serving)


@dataclass(frozen=True, slots=True)
class Work:
    """Where the admitted tokens are, and shares of the last seconds, 0 to 1.

    `completing`: computed, and neither answered nor acknowledged; also inputs that share another's computation.
    `saturated`: queries waited while every model server was busy. `paused`: a source was. `core`: the event loop's CPU.
    """

    queued: int
    computing: int
    completing: int
    saturated: float
    paused: float
    core: float

    @property
    def is_saturated(self) -> bool:
        return self.saturated >= _MOST


@dataclass(frozen=True, slots=True)
class Latency:
    """The target for answers (`sla.latency_s`, None without one), and whether they come later than it."""

    target_s: float | None
    late: bool

    @property
    def words(self) -> str:
        """Whether calls are served as promised."""
        if self.target_s is None:
            return "Nothing is held up"
        return f"Calls are {'late' if self.late else 'on time'}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence, the section of the runbook that says what to do, and how urgent that is."""

    text: str
    runbook: Runbook
    severity: Severity = Severity.PROBLEM


def bottleneck(work: Work, scaling: Sequence[Scaling], latency: Latency) -> str:
    if not any(each.serving for each in scaling):
        return "No model server is available: everything waits for the first one."
    short = max(scaling, key=lambda each: each.missing)
    model = f" ({short.model})" if len(scaling) > 1 else ""
    if work.is_saturated:
        if short.missing:
            return f"Model servers are saturated: {short.missing} more would keep up with the load{model}."
        return "Model servers are busy, and those that serve keep up with the load."
    if work.core >= _MOST:
        return "This aggregator's core is saturated: one more aggregator would share the work."
    if work.completing > _MOST * (work.queued + work.computing + work.completing):
        return "Replies wait for the broker's acknowledgement, or for callers that read slowly."
    if work.paused >= _MOST:
        return "Intake waits: the requests in flight fill the limit."
    if short.missing:
        servers = "one model server is" if short.missing == 1 else f"{short.missing} model servers are"
        return f"{latency.words}; {servers} missing{model}."
    return f"{latency.words}."


def server_problems(
    troubles: Sequence[tuple[str, str, str]],
    scaling: Sequence[Scaling],
    slow: Mapping[str, float],
    *,
    pressed: bool,
) -> Iterator[Problem]:
    """Model servers that are missing or slow. `troubles`: address, model and reason of each that is not used.

    `slow`: how many times slower than its curve each slow one runs. `pressed`: servers are saturated, or answers late.
    """
    for each in scaling:
        if not each.serving:
            waits = f", and {_count(each.pending, 'request')} {_verb(each.pending)}" if each.pending else ""
            yield Problem(f"{each.model} has no model server{waits}.", Runbook.NO_MODEL_SERVER)
    for address, model, reason in troubles:
        text = f"Model server {address} of {model} is not used: {reason.rstrip('.')}."
        yield Problem(text, Runbook.MODEL_SERVER)
    for address, factor in slow.items():
        text = f"Model server {address} computes {factor:.1f} times as long as it measured at its start."
        yield Problem(text, Runbook.MODEL_SERVER)
    for each in scaling:
        if each.missing and each.serving:
            required = _count(each.serving + each.missing, "model server")
            severity = Severity.PROBLEM if pressed else Severity.NOTICE
            text = f"{each.model} requires {required} and has {each.serving}."
            yield Problem(text, Runbook.REPLICAS_SHORT, severity)


def back_pressure(backlogs: Sequence[Backlog]) -> Iterator[Problem]:
    """Partitions that wait until the queue has room: so memory stays bounded, and it is no fault."""
    paused = [each for each in backlogs if each.paused]
    if paused:
        names = " and ".join(sorted({each.source.title() for each in paused}))
        waiting = f"{len(paused)} of {_count(len(backlogs), 'partition')} {_verb(len(paused))}"
        text = f"{names}: read as fast as the queue empties ({waiting}). Nothing to do for a bulk job."
        yield Problem(text, Runbook.BACK_PRESSURE, Severity.NOTICE)


def other_problems(
    recent: Totals,
    latency: Latency,
    *,
    away: Sequence[str],
    file_limit_warning: str = "",
    outranked: Collection[str] = (),
) -> Iterator[Problem]:
    """Further troubles. `recent`: counts of the last minute.

    `outranked`: topics whose urgent records may wait behind less urgent ones.
    """
    for sentence in away:
        yield Problem(f"{sentence}.", Runbook.BROKER)
    if outranked:
        topics = ", ".join(sorted(outranked))
        yield Problem(f"Urgent records of {topics} wait behind less urgent ones of the same topic.", Runbook.LAG)
    if latency.late and latency.target_s is not None:
        yield Problem(f"Answers are later than {latency.target_s:g} s, the target (sla.latency_s).", Runbook.SLOW)
    for count, noun, plural, verb, runbook in (
        (recent.lost, "record", "", "lost", Runbook.RECORDS_LOST),
        (recent.dead_letters, "dead letter", "", "written", Runbook.DEAD_LETTERS),
        (recent.refused, "call", "", "refused", Runbook.OVERLOAD),
        (recent.expired, "query", "queries", "too late to be answered", Runbook.ERRORS),
        (recent.commit_failures, "commit", "", "refused", Runbook.COMMITS),
        (recent.ahead, "record", "", "from the future", Runbook.CLOCKS),
    ):
        if count:
            was = "was" if count == 1 else "were"
            yield Problem(f"{_count(count, noun, plural)} {was} {verb} in the last minute.", runbook)
    if file_limit_warning:
        yield Problem(f"{file_limit_warning}.", Runbook.OVERLOAD)


def _count(number: float, noun: str, plural: str = "") -> str:
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


def _verb(number: float) -> str:
    return "waits" if number == 1 else "wait"
