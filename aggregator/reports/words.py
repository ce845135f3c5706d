"""Say in words what is wrong, and which station is the bottleneck."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from aggregator.observability.metrics import Totals
from aggregator.reports.stations import Shares, Station

_MOST = 0.8
"""A station that works, or is held up, for this share of the time is worth a sentence."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The terms of the scaler's formula for one model; `required` is None until a server's throughput is known."""

    model: str
    arriving_tokens_per_s: float
    backlog_tokens: float
    pod_tokens_per_s: float | None
    memory_pods: float
    drain_s: float
    utilisation: float
    required: float | None
    serving: int
    pending: int

    @property
    def missing(self) -> int:
        """Model servers that are required and do not serve."""
        return 0 if self.required is None else max(0, ceil(self.required - 1e-9) - self.serving)


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence, and the heading of docs/runbook.md that says what to do."""

    text: str
    runbook: str


def bottleneck(loop: float, stations: Mapping[Station, Shares], scaling: Sequence[Scaling]) -> str:
    if not any(each.serving for each in scaling):
        return "No model server is available: everything waits for the first one."
    short = max(scaling, key=lambda each: each.missing)
    servers, queue = stations[Station.MODEL_SERVERS], stations[Station.QUEUE]
    if servers.working >= _MOST or queue.held_up >= _MOST:
        if short.missing:
            more = f"{short.missing} more would hold the target" + (f" ({short.model})" if len(scaling) > 1 else "")
            return f"Model servers are saturated: {more}."
        return "Model servers are busy, and those that serve hold the target."
    if loop >= _MOST:
        return "This aggregator's core is saturated: one more aggregator would share the work."
    if stations[Station.COMPLETE].held_up >= _MOST:
        return "Replies wait for the broker's acknowledgement, or for callers that read slowly."
    if stations[Station.RECEIVE].held_up >= _MOST:
        return "Intake is paused: what was taken in fills the limits."
    return f"Nothing is held up: model servers work {servers.working * 100:.0f} % of the time."


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
            yield shortage(each)


def shortage(scaling: Scaling) -> Problem:
    required = scaling.serving + scaling.missing
    servers = "model server" if required == 1 else "model servers"
    text = f"{scaling.model} requires {required} {servers} and has {scaling.serving}."
    return Problem(text, "TokenbatchReplicasShort")


def other_problems(
    recent: Totals, paused: int, *, away: Sequence[str], slow: bool, clock_skew_s: float, few_files: str = ""
) -> Iterator[Problem]:
    """What else is wrong. `recent`: counts of the last minute. `slow`: answers are later than the latency target."""
    for sentence in away:
        yield Problem(f"{sentence}.", "No broker answers")
    minute = "in the last minute"
    for count, text, runbook in (
        (paused, f"{paused} partitions are paused", "TokenbatchLagGrows"),
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
        (clock_skew_s, f"The clock differs from the records' clocks by {clock_skew_s:.0f} s", "TokenbatchClockSkew"),
        (few_files, few_files, "The load exceeds the capacity"),
    ):
        if count:
            yield Problem(f"{text}.", runbook)


def anchor(heading: str) -> str:
    return "".join(each for each in heading.lower() if each.isalnum() or each in "_ -").replace(" ", "-")
