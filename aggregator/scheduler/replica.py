"""One model server, as the aggregator sees it: its batches in flight, when the next one is due, its speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from aggregator.scheduler.budget import BudgetController
from aggregator.scheduler.curve import Curve
from aggregator.scheduler.rates import LightLead, ReplyDelay
from aggregator.scheduler.speed import Speed
from aggregator.scheduler.work_item import Beside, Priority


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """How a replica times its batches. Times are in seconds; the rest are shares and factors.

    `idle_target`: the engine's idle time between batches, as a share of the step, below which the lead is good.
    `first_timeout_s`: the least time-out of a batch until the replica's first reply. `evidence_factor`: a reply is
    evidence while the step's predicted time is at most this multiple of its real time. `shared_from`: a replica counts
    as shared with other aggregators if at least this share of its replies report their batches.
    """

    idle_target: float = 0.01
    first_lead_s: float = 0.004
    min_lead_s: float = 0.0005
    lead_decay: float = 0.02
    staged_margin_s: float = 0.002
    min_timeout_s: float = 0.05
    first_timeout_s: float = 10.0
    timeout_factor: float = 4.0
    evidence_max_age_s: float = 5.0
    evidence_factor: float = 2.0
    shared_from: float = 0.2
    sharing_gain: float = 0.1


@dataclass(slots=True)
class BatchOut:
    """One batch in flight, the budget it was packed for, and when it is expected back.

    `lead_s`: how long before the predicted end of the one ahead it was sent; None if its step says nothing of that:
    none was ahead, or a more urgent one was sent after it. `in_time`: it was sent as early as a full batch is to be.
    """

    batch_id: str
    token_count: int
    token_budget: int
    end_s: float
    promised_s: float
    lead_s: float | None
    in_time: bool
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class StepReport:
    """A reply's report of the engine step that ran the batch, possibly merged with others' batches.

    Of a server that also generates: `decoding_sequences` got a token in that step, and `embed_room_tokens` of
    embeddings fit the next one; None if it has one task. `engine_s`: the batch's part of the step, by its tokens.
    `recent_priorities`: the classes of the batches that the server got lately, from any aggregator.
    """

    step_tokens: int
    step_duration_s: float
    queued_tokens: int
    idle_before_s: float
    staged_s: float
    decoding_sequences: int = 0
    embed_room_tokens: int | None = None
    engine_s: float = 0.0
    recent_priorities: frozenset[Priority] = frozenset()


STATES = ("idle", "running", "staged")
"""The states of a replica: nothing in flight, one batch running, and at least one more behind it."""
_ANY = 1 << 30  # items: no limit
_PARTS = 4
"""Where batches share the next step, they are sent at intervals of this part of their step."""
_NOTABLY = 0.75
"""A step of half the budget takes half the time where tokens decide, and nearly all of it where the launches do."""
_OVERTAKEN_S = 2.0
"""A server lets more urgent batches of any aggregator go before a batch for a second at most, and then in turns."""


class Replica:
    """One model server, as this aggregator sees it: its batches in flight, its speed, when the next batch is due.

    `lead_s`: how long before the running step's predicted end a full batch is sent; `light_lead`: a nearly empty one.
    `exclusive`: a suspect runs here alone, or waits to. `sibling`: the same server's replica for its other task.
    `foreign_tokens`: tokens that other aggregators had queued here at the last reply. `token_budget`: the size of a
    batch while no backlog waits: the given budget, or less if `budget_controller` allows less. `largest`: what a batch
    may hold of a backlog. `most_urgent`, `least_urgent`: of the classes that it got lately, from any aggregator, as
    of the last reply. A server runs the batches that wait in the order of their classes, so `_out` is in that order.
    """

    sequences = 0
    """Of this aggregator, that run by themselves here; used by `wings/generation`."""
    kv_tokens = 0
    """Tokens that the server's KV cache holds; 0: it has none."""

    def __init__(
        self,
        name: str,
        curve: Curve | None,
        token_budget: int,
        policy: ReplicaPolicy,
        budget_controller: BudgetController | None = None,
        *,
        capacity: int = 0,
    ) -> None:
        """`capacity`: tokens that a batch of a backlog may hold; 0: at most the budget."""
        self.name = name
        self.budget_controller = budget_controller
        self._usual = token_budget
        self._capacity = max(token_budget, capacity)
        self._speed = Speed(curve)
        self._follow_budget()
        self.lead_s = policy.first_lead_s
        self.light_lead = LightLead(policy.first_lead_s, policy.min_lead_s)
        self.reply_delay = ReplyDelay()
        self.foreign_tokens = 0
        self.most_urgent, self.least_urgent = Priority.BACKGROUND, Priority.INTERACTIVE
        self.not_before_s = -inf
        self.exclusive = False
        self.sibling: Replica | None = None
        self._policy = policy
        self._out: deque[BatchOut] = deque()
        self._evidence_s = self._replied_s = self._sent_s = -inf
        self._sharing = 0.0

    @property
    def seats(self) -> int:
        return _ANY

    @property
    def curve(self) -> Curve | None:
        return self._speed.curve

    @property
    def scale(self) -> float:
        return self._speed.scale

    @property
    def batches_out(self) -> int:
        """Batches sent and not answered: 0 to 2; more of several classes, or beside sequences that decode."""
        return len(self._out)

    @property
    def state(self) -> str:
        """One of `STATES`."""
        return STATES[min(len(self._out), 2)]

    @property
    def reserved(self) -> bool:
        """Whether a suspect of the server's other task runs here or waits to: it must not harm this task's inputs."""
        return self.sibling is not None and self.sibling.exclusive

    @property
    def idle(self) -> bool:
        """Whether the server has no batch of either task, and no suspect of the other one."""
        return not (self._out or self.reserved or (self.sibling is not None and self.sibling.batches_out))

    @property
    def tokens_out(self) -> int:
        return sum(out.token_count for out in self._out)

    @property
    def end_s(self) -> float:
        """The predicted end of the batches in flight; without any, when the server may be sent a batch."""
        return self._out[-1].end_s if self._out else self.not_before_s

    def step_time_s(self, tokens: int) -> float:
        return self._speed.step_time_s(tokens)

    def pod_step(self) -> tuple[int, float]:
        """The token budget and its step's time on an otherwise idle server: its throughput."""
        return self.token_budget, self.step_time_s(self.token_budget)

    def free_s(self, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """When the engine is predicted to have finished all that goes before a batch of this class.

        That is what is in flight and no less urgent, and all that others queued.
        """
        if not self._out:
            return max(now_s + self._foreign_s(now_s), self.not_before_s)
        end_s = self._out[self._ahead(priority) - 1].end_s
        if end_s < now_s:
            # An overdue batch is expected to take as long again: a server that hangs must not look free.
            end_s += 2.0 * (now_s - end_s)
        return max(end_s, self.not_before_s)

    def finish_s(self, tokens: int, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """The predicted end of a batch of `tokens` tokens that is sent now."""
        return self.free_s(now_s, priority) + self.step_time_s(tokens)

    def answer_s(self, tokens: int, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """When the answer to that batch is expected, by how recent replies compared with their predictions."""
        step_s = self.step_time_s(tokens)
        return self.free_s(now_s, priority) + step_s + self.reply_delay.value * step_s

    def answered_within_s(self, by_s: float, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """How many seconds a step that is sent now may take, so that its answer is expected by `by_s`."""
        return (by_s - self.free_s(now_s, priority)) / (1.0 + self.reply_delay.value)

    def finishes_by(self, by_s: float, tokens: int, now_s: float) -> int:
        """How many of `tokens` waiting tokens this replica is predicted to finish by `by_s`, in steps of its budget.

        0 when it is overdue, so that nothing waits for a server that hangs.
        """
        left_s = by_s - self.free_s(now_s)
        if self.exclusive or self.end_s <= now_s or left_s <= 0.0:
            return 0
        step_tokens = min(tokens, self.token_budget)
        return min(tokens, int(left_s / self.step_time_s(step_tokens)) * step_tokens)

    def batch_tokens(
        self,
        queued_tokens: int,
        backlog_tokens: int = 0,
        within_s: float = 0.0,
        share_tokens: int = 0,
        beside: Beside = Beside.NOBODY,
    ) -> int:
        """Tokens that the next batch may hold here, in a step that takes no longer than `within_s`.

        A backlog goes in batches larger than the budget, because a batch also costs time besides its tokens. Otherwise
        the size is the budget. It is half of the budget if more than half waits and other aggregators send too: the
        server merges batches that fit the budget together, and two that are slightly larger than half do not. It is
        half, too, `beside` others that send more urgent batches: then it has room in a step with these. Beside this
        aggregator's own, which wait for a running step to end, it is half where that step is notably shorter.
        `share_tokens`, the waiting tokens for each replica, applies to generation only.
        """
        del share_tokens
        budget = self.token_budget
        half = max(1, budget // 2)
        if beside is Beside.OTHERS:
            return half
        if beside is Beside.OWN and self.step_time_s(half) <= _NOTABLY * self.step_time_s(budget):
            return half
        if backlog_tokens > budget:
            most = min(backlog_tokens, self.tokens_within(within_s))
            return max(budget, self._speed.snapped(most, most))
        return half if self._is_shared and half < queued_tokens < budget else budget

    @property
    def _is_shared(self) -> bool:
        """Whether other aggregators send there too, lately."""
        return self._sharing >= self._policy.shared_from

    def note_prompts(self, prompts: Iterable[bytes]) -> None:
        """These prompts (ids, int32 little endian) are sent here; an embedding replica remembers nothing of them."""

    def known_tokens(self, prompt: bytes) -> int:
        """Tokens of the prompt's beginning that the server need not compute again."""
        del prompt
        return 0

    def has_evidence(self, now_s: float) -> bool:
        """Whether a recent reply confirmed the predictions, so that they may refuse a query."""
        return now_s - self._evidence_s <= self._policy.evidence_max_age_s

    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND, share_tokens: float = inf) -> float:
        """The time (monotonic seconds) at which it takes its next batch of this class.

        `share_tokens`: the waiting tokens divided by the number of replicas; the fewer, the later a batch is sent.
        Now if idle, soon where it shares the next step with those in flight, `inf` while one no less urgent is staged,
        else the running batch's predicted end minus the lead.
        """
        out = self._out
        if self.reserved or (self.exclusive and not self.idle):
            return inf
        if not out:
            return max(now_s, self.not_before_s)
        if self._joins(priority):
            return max(self._sent_s + self.step_time_s(self.tokens_out) / _PARTS, self.not_before_s)
        ahead = self._ahead(priority)
        if ahead > 1:
            return inf
        fill = inf if self._is_shared else share_tokens / self.token_budget
        return max(out[ahead - 1].end_s - self.light_lead.up_to(self.lead_s, fill), self.not_before_s)

    def _joins(self, priority: Priority) -> bool:
        """Whether another batch of this class shares the next step with those in flight.

        Others' less urgent batches run there, so the end of the running step is not known; what has come by then goes
        into one step.
        """
        shared = priority < self.least_urgent and self.tokens_out < self.token_budget
        return shared and all(out.priority <= priority for out in self._out)

    def _ahead(self, priority: Priority) -> int:
        """How many of the batches in flight go before one of this class: the first one runs."""
        out = self._out
        ahead = min(1, len(out))
        while ahead < len(out) and out[ahead].priority <= priority:
            ahead += 1
        return ahead

    def sent(
        self,
        batch_id: str,
        token_count: int,
        now_s: float,
        step_budget: int = 0,
        priority: Priority = Priority.INTERACTIVE,
    ) -> float:
        """Note a batch whose step may hold `step_budget` tokens (0: the budget); returns its time-out (seconds).

        The time-out allows for one full step of another aggregator, which this replica cannot predict, and for those of
        more urgent batches that others send.
        """
        policy = self._policy
        end_s = self.finish_s(token_count, now_s, priority)
        ahead = self._ahead(priority)
        lead_s = self._out[ahead - 1].end_s - now_s if ahead else None
        in_time = ahead > 0 and now_s <= self._out[ahead - 1].end_s - self.lead_s
        budget = step_budget or self.token_budget
        self._out.insert(ahead, BatchOut(batch_id, token_count, budget, end_s, end_s, lead_s, in_time, priority))
        step_s = self.step_time_s(token_count)
        for behind in list(self._out)[ahead + 1 :]:
            behind.end_s, behind.promised_s = behind.end_s + step_s, behind.promised_s + step_s
            behind.lead_s, behind.in_time = None, False
        longest_s = end_s - now_s + self.step_time_s(self.largest)
        self._sent_s = now_s
        overtaken_s = _OVERTAKEN_S if self.most_urgent < priority else 0.0
        return max(self._least_timeout_s(), policy.timeout_factor * longest_s) + overtaken_s

    def _least_timeout_s(self) -> float:
        return self._policy.min_timeout_s if self._replied_s > -inf else self._policy.first_timeout_s

    def ended(self, batch_id: str, now_s: float, report: StepReport | None) -> None:
        """Note that a batch came back, with its step's report; None if it failed."""
        out = next((out for out in self._out if out.batch_id == batch_id), None)
        assert out is not None, "A batch came back that is not out on this replica. This is a bug."
        self._out.remove(out)
        self.exclusive = False
        if report is not None:
            self._learn(out, report, now_s)
        start_s = now_s + self._foreign_s(now_s)
        for waiting in self._out:
            waiting.end_s = start_s = start_s + self.step_time_s(waiting.token_count)

    def hold_until(self, until_s: float) -> None:
        """Send nothing before `until_s`: the server said it is busy."""
        self.not_before_s = max(self.not_before_s, until_s)

    def _foreign_s(self, now_s: float) -> float:
        """How long the engine still works on the batches that other aggregators had queued at the last reply."""
        if not self.foreign_tokens:
            return 0.0
        return max(0.0, self._replied_s + self.step_time_s(self.foreign_tokens) - now_s)

    def _learn(self, out: BatchOut, report: StepReport, now_s: float) -> None:
        """Learn from the engine's step, not from the own batch's size: a step may hold others' batches too."""
        policy = self._policy
        self._learn_step(report)
        self._steer(out, report)
        self.most_urgent = min(report.recent_priorities, default=Priority.BACKGROUND)
        self.least_urgent = max(report.recent_priorities, default=Priority.INTERACTIVE)
        if out.priority <= self.most_urgent:  # else others' more urgent batches went before it
            self.reply_delay.observe(now_s - out.promised_s, report.step_duration_s)
        self._replied_s = now_s
        borne_out = self.step_time_s(report.step_tokens) <= policy.evidence_factor * report.step_duration_s
        self._evidence_s = now_s if borne_out else -inf
        self.foreign_tokens = max(0, report.queued_tokens - self.tokens_out)
        shared = report.step_tokens > out.token_count or self.foreign_tokens > 0
        self._sharing += policy.sharing_gain * (shared - self._sharing)
        if out.lead_s is not None:
            self.light_lead.observe(out.lead_s + report.idle_before_s - report.staged_s)
        if not out.in_time:
            return
        if report.idle_before_s > policy.idle_target * report.step_duration_s:
            self.lead_s = min(self.lead_s + report.idle_before_s, report.step_duration_s)
        elif report.staged_s > policy.staged_margin_s:
            shorter_s = self.lead_s - policy.lead_decay * (report.staged_s - policy.staged_margin_s)
            self.lead_s = max(policy.min_lead_s, shorter_s)

    def _learn_step(self, report: StepReport) -> None:
        self._speed.learn(report.step_tokens, report.step_duration_s)

    def _steer(self, out: BatchOut, report: StepReport) -> None:
        budget_controller = self.budget_controller
        if budget_controller is not None:
            shortest_s = self.step_time_s(budget_controller.min_tokens)
            budget_controller.observe(report.step_tokens, report.step_duration_s, out.token_budget, shortest_s)
            self._follow_budget()

    def _follow_budget(self) -> None:
        allowed = self._capacity if self.budget_controller is None else self.budget_controller.token_budget
        usual, self.largest = min(self._usual, allowed), min(self._capacity, allowed)
        self.token_budget = self._speed.snapped(usual, usual)

    def tokens_within(self, seconds: float) -> int:
        """The predicted number of tokens in a step of this many seconds, at most `largest`."""
        return self._speed.tokens_within(seconds, self.largest)
