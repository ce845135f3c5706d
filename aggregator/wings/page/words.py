"""State the problems and the bottleneck in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from aggregator.observability.metrics import Totals

_MOST = 0.8
"""A state that holds for this share of the time, or holds this share of the tokens, is the bottleneck."""


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


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence, and the heading of docs/runbook.md that says what to do."""

    text: str
    runbook: str


def bottleneck(work: Work, scaling: Sequence[Scaling]) -> str:
    if not any(each.serving for each in scaling):
        return "No model server is available: everything waits for the first one."
    short = max(scaling, key=lambda each: each.missing)
    if work.saturated >= _MOST:
        if short.missing:
            more = f"{short.missing} more would hold the target" + (f" ({short.model})" if len(scaling) > 1 else "")
            return f"Model servers are saturated: {more}."
        return "Model servers are busy, and those that serve hold the target."
    if work.core >= _MOST:
        return "This aggregator's core is saturated: one more aggregator would share the work."
    if work.completing > _MOST * (work.queued + work.computing + work.completing):
        return "Replies wait for the broker's acknowledgement, or for callers that read slowly."
    if work.paused >= _MOST:
        return "Intake is paused: the requests in flight fill the limits."
    return "Nothing is held up."


def server_problems(troubles: Sequence[tuple[str, str, str]], scaling: Sequence[Scaling]) -> Iterator[Problem]:
    """Model servers that are missing. `troubles`: address, model and reason of each that is not used."""
    for each in scaling:
        if not each.serving:
            waits = f", and {each.pending} requests wait" if each.pending else ""
            yield Problem(f"{each.model} has no model server{waits}.", "TokenbatchNoModelServer")
    for address, model, reason in troubles:
        text = f"Model server {address} of {model} is not used: {reason.rstrip('.')}."
        yield Problem(text, "A model server dies, hangs or is slow")
    for each in scaling:
        if each.missing and each.serving:
            required = each.serving + each.missing
            servers = "model server" if required == 1 else "model servers"
            text = f"{each.model} requires {required} {servers} and has {each.serving}."
            yield Problem(text, "TokenbatchReplicasShort")


def other_problems(
    recent: Totals,
    paused: int,
    *,
    away: Sequence[str],
    slow: bool,
    few_files: str = "",
    outranked: Collection[str] = (),
) -> Iterator[Problem]:
    """Further troubles. `recent`: counts of the last minute. `slow`: answers are later than the latency target.

    `outranked`: topics whose urgent records may wait behind less urgent ones.
    """
    for sentence in away:
        yield Problem(f"{sentence}.", "No broker answers")
    minute = "in the last minute"
    for count, text, runbook in (
        (paused, f"{paused} partitions are paused", "TokenbatchLagGrows"),
        (
            outranked,
            f"Urgent records of {', '.join(sorted(outranked))} wait behind less urgent ones of the same topic",
            "TokenbatchLagGrows",
        ),
        (slow, "Answers are later than the latency target", "TokenbatchSlow"),
        (recent.lost, f"{recent.lost:,.0f} records were lost {minute}", "TokenbatchRecordsLost"),
        (
            recent.dead_letters,
            f"{recent.dead_letters:,.0f} dead letters came {minute}",
            "TokenbatchDeadLetters",
        ),
        (recent.refused, f"{recent.refused:,.0f} calls were refused {minute}", "The load exceeds the capacity"),
        (recent.expired, f"{recent.expired:,.0f} queries expired {minute}", "TokenbatchErrors"),
        (recent.commit_failures, f"{recent.commit_failures:,.0f} commits failed {minute}", "TokenbatchCommitsFail"),
        (recent.ahead, f"{recent.ahead:,.0f} records were from the future {minute}", "TokenbatchClockSkew"),
        (few_files, few_files, "The load exceeds the capacity"),
    ):
        if count:
            yield Problem(f"{text}.", runbook)


def anchor(heading: str) -> str:
    return "".join(each for each in heading.lower() if each.isalnum() or each in "_ -").replace(" ", "-")
