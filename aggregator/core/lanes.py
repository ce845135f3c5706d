"""Decide which model server gets the next batch, and when: one running, one staged, sealed as late as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from aggregator.core.saturation import Curve, LiveScale, Rule

# Before a server has measured itself: a guess that its first replies correct.
UNMEASURED = Curve(0.0, 0.005, 5e-5, 512, Rule.THROUGHPUT, 8192)


class SendReason(StrEnum):
    """Why a batch was sent when it was; the label of `embed.batch.sends`."""

    IDLE = "idle"  # the lane had nothing to do
    FULL = "full"  # the lane had nothing to do, and more than a budget waited
    STAGED = "staged"  # the running batch is about to end
    AGED = "aged"  # it carries queries that waited too long
    OVERSIZED = "oversized"  # one input longer than the budget
    DRAIN = "drain"  # the process is stopping
    RETRY = "retry"  # a failed batch, once more
    SUSPECT = "suspect"  # part of a batch that failed twice, alone in the pool


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How lanes time their batches; all in seconds but the shares and factors.

    `idle_target`: engine idle time between batches, as a share of the step, under which the lead is good.
    """

    idle_target: float = 0.01
    first_lead_s: float = 0.004
    min_lead_s: float = 0.0005
    lead_decay: float = 0.05
    staged_margin_s: float = 0.002
    min_timeout_s: float = 0.05
    timeout_factor: float = 4.0
    evidence_max_age_s: float = 5.0


@dataclass(slots=True)
class _Out:
    """One batch that is out."""

    batch_id: str
    token_count: int
    sent_s: float
    end_s: float
    staged: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a reply tells of the engine step that ran the batch (maybe merged with others' batches)."""

    step_tokens: int
    step_duration_s: float
    queued_tokens: int
    idle_before_s: float
    staged_s: float


class Lane:
    """One model server, as this aggregator sees it: what is out, how fast it is, when the next batch is due."""

    def __init__(self, name: str, curve: Curve | None, token_budget: int, policy: LanePolicy) -> None:
        self.name = name
        self.token_budget = token_budget
        self.lead_s = policy.first_lead_s
        self.foreign_tokens = 0
        self.not_before_s = 0.0
        self.exclusive = False
        self._curve = curve or UNMEASURED
        self._scale = LiveScale()
        self._policy = policy
        self._out: deque[_Out] = deque()
        self._evidence_s = -inf

    @property
    def batches_out(self) -> int:
        """Batches sent and not answered: 0 to 2."""
        return len(self._out)

    @property
    def tokens_out(self) -> int:
        """Tokens of those batches."""
        return sum(out.token_count for out in self._out)

    def step_time_s(self, tokens: int) -> float:
        """Predicted seconds of one step over `tokens` tokens."""
        return self._curve.time_s(tokens) * self._scale.value

    def free_s(self, now_s: float) -> float:
        """When the engine is predicted to have run all that is out and all that others queued."""
        if not self._out:
            return now_s + self._foreign_s()
        end_s = self._out[-1].end_s
        # What is overdue is likely to stay so for as long again: a hung server must not look like a free one.
        return end_s if end_s >= now_s else now_s + (now_s - end_s)

    def finish_s(self, tokens: int, now_s: float) -> float:
        """When a batch of `tokens` tokens sent now is predicted to be done."""
        return self.free_s(now_s) + self.step_time_s(tokens)

    def has_evidence(self, now_s: float) -> bool:
        """Whether a reply came lately, so that a prediction may refuse a query."""
        return now_s - self._evidence_s <= self._policy.evidence_max_age_s

    def due_s(self, now_s: float) -> float:
        """When this lane takes its next batch: now when idle, at predicted end minus lead when one runs."""
        if self.exclusive or len(self._out) >= 2:
            return inf
        due_s = self._out[0].end_s - self.lead_s if self._out else now_s
        return max(due_s, self.not_before_s)

    def sent(self, batch_id: str, token_count: int, now_s: float) -> float:
        """Note a batch that goes out; returns its time-out in seconds from now."""
        end_s = self.finish_s(token_count, now_s)
        self._out.append(_Out(batch_id, token_count, now_s, end_s, staged=bool(self._out)))
        return max(self._policy.min_timeout_s, self._policy.timeout_factor * (end_s - now_s))

    def ended(self, batch_id: str, now_s: float, report: StepReport | None) -> None:
        """Note that a batch came back, with what its step reports; None when it failed."""
        out = next(out for out in self._out if out.batch_id == batch_id)
        self._out.remove(out)
        self.exclusive = False
        if report is not None:
            self._learn(out, report, now_s)
        start_s = now_s + self._foreign_s()
        for waiting in self._out:
            waiting.end_s = start_s = start_s + self.step_time_s(waiting.token_count)

    def hold_until(self, until_s: float) -> None:
        """Send nothing before `until_s`: the server said it is busy."""
        self.not_before_s = max(self.not_before_s, until_s)

    def _foreign_s(self) -> float:
        return self.step_time_s(self.foreign_tokens) if self.foreign_tokens else 0.0

    def _learn(self, out: _Out, report: StepReport, now_s: float) -> None:
        """Steer by what the engine did, never by the own batch's size: a step may hold others' batches too."""
        self._evidence_s = now_s
        self._scale.observe(report.step_duration_s, self._curve.time_s(report.step_tokens))
        self.foreign_tokens = max(0, report.queued_tokens - self.tokens_out)
        if not out.staged:
            return
        policy = self._policy
        if report.idle_before_s > policy.idle_target * report.step_duration_s:
            self.lead_s = min(self.lead_s + report.idle_before_s, report.step_duration_s)
        elif report.staged_s > policy.staged_margin_s:
            shorter_s = self.lead_s - policy.lead_decay * (report.staged_s - policy.staged_margin_s)
            self.lead_s = max(policy.min_lead_s, shorter_s)


@dataclass(frozen=True, slots=True)
class Turn:
    """A lane that takes a batch now, or the time to ask again (`inf`: when something changes)."""

    lane: Lane | None
    reason: SendReason
    wake_s: float


def next_turn(lanes: Iterable[Lane], now_s: float, queued_tokens: int) -> Turn:
    """Choose the lane with the smallest predicted finish among those whose turn it is.

    An idle lane is passed by only when another lane, even after all that it has out, would finish the same
    tokens sooner (a pod ten times slower than its siblings must not hold a query for ten times as long).
    """
    best: Lane | None = None
    best_finish_s = best_elsewhere_s = wake_s = inf
    for lane in lanes:
        tokens = min(queued_tokens, lane.token_budget)
        finish_s = lane.finish_s(tokens, now_s)
        due_s = lane.due_s(now_s)
        if due_s <= now_s:
            if finish_s < best_finish_s:
                best, best_finish_s = lane, finish_s
            continue
        wake_s = min(wake_s, due_s)
        if due_s < inf:
            best_elsewhere_s = min(best_elsewhere_s, finish_s)
    if best is None or (best_elsewhere_s < best_finish_s and best_elsewhere_s < inf):
        return Turn(None, SendReason.IDLE, wake_s)
    if best.batches_out:
        return Turn(best, SendReason.STAGED, wake_s)
    return Turn(best, SendReason.FULL if queued_tokens >= best.token_budget else SendReason.IDLE, wake_s)
