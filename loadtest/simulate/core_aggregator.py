"""The aggregator's own core in the simulation, whole or with some of its mechanisms switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from math import inf

from typing_extensions import override

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.scheduler.budget import BudgetController, ServiceLevel, StepLimits
from aggregator.scheduler.curve import Curve
from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.packing import Packer
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.replica_choice import NewReplicas, all_in_use
from aggregator.scheduler.work_item import Priority, Query, WorkItem
from loadtest.simulate.model_servers import Engine, InFlightBatch


class Mechanism(StrEnum):
    """A mechanism of the core beyond sending all that waits to the model server that is free first."""

    SUBSETS = "subsets"  # of more than 32 model servers, as many are used as there is work for (ADR 14)
    PACING = "pacing"  # batches that are not full keep their distance in time (ADR 11)
    HALF_BATCHES = "half-batches"  # where others send too, batches are cut so that two fit one step (ADR 11)
    LARGE_STEPS = "large-steps"  # of a backlog, more is cut than a batch usually holds (ADR 15)
    CAPTURE_SIZES = "capture-sizes"  # budgets are sizes that the model servers have CUDA graphs for (ADR 38)
    SKIPPING = "skipping"  # a slow server that is idle is skipped while others would finish sooner (ADR 4)
    STAGING = "staging"  # a busy server gets its next batch just before the running one ends
    LIGHT_LEAD = "light-lead"  # the fewer tokens wait, the later it is sent
    DEADLINE_ESTIMATE = "deadline-estimate"  # queries are refused whose batch is predicted to end too late
    LOOK_AHEAD = "look-ahead"  # behind a query that does not fit a batch, later ones are examined
    AGED_SHARE = "aged-share"  # a part of each batch goes to what has waited longest, of any class or tenant
    COALESCING = "coalescing"  # equal inputs that wait share one computation
    HALVING = "halving"  # a batch that failed twice is cut in halves, not in single inputs, to find the poison
    PREFIX_AFFINITY = "prefix-affinity"  # a prompt goes to a server that computed its beginning before
    FIRST_TOKEN_REFUSAL = "first-token-refusal"  # a generation is refused on arrival if no token will come in time


ReplicaMaker = Callable[..., Replica]


def policy_without(off: AbstractSet[Mechanism], policy: DispatchPolicy) -> DispatchPolicy:
    """The policy with values that turn off those mechanisms which have one."""
    if Mechanism.SUBSETS in off:
        policy = replace(policy, replicas=all_in_use)
    if Mechanism.PACING in off:
        policy = replace(policy, paced=False)
    if Mechanism.HALF_BATCHES in off:
        policy = replace(policy, replica=replace(policy.replica, shared_from=inf))
    if Mechanism.LOOK_AHEAD in off:
        policy = replace(policy, pack=replace(policy.pack, lookahead=0))
    if Mechanism.COALESCING in off:
        policy = replace(policy, queue=replace(policy.queue, coalesce=False))
    if Mechanism.HALVING in off:
        policy = replace(policy, retry=replace(policy.retry, parts=_MOST_ITEMS))
    return policy


def replicas_without(off: AbstractSet[Mechanism]) -> ReplicaMaker:
    """The maker of replicas that lack these mechanisms."""
    kinds = {
        Mechanism.SKIPPING: _NeverSkipped,
        Mechanism.STAGING: _NothingStaged,
        Mechanism.LIGHT_LEAD: _AlwaysFull,
        Mechanism.DEADLINE_ESTIMATE: _NothingPredicted,
    }
    kind: type[Replica] = type("Lacking", (*(kinds[mechanism] for mechanism in kinds if mechanism in off), Replica), {})

    def make(
        name: str,
        curve: Curve,
        token_budget: int,
        policy: ReplicaPolicy,
        budget_controller: BudgetController | None,
        *,
        capacity: int,
    ) -> Replica:
        most = 0 if Mechanism.LARGE_STEPS in off else capacity
        return kind(name, curve, token_budget, policy, budget_controller, capacity=most)

    return make


class _NeverSkipped(Replica):
    """A replica that nobody waits for."""

    @override
    def finishes_by(self, by_s: float, tokens: int, now_s: float) -> int:
        return 0


class _NothingStaged(Replica):
    """A replica that gets its next batch when the running one is answered."""

    @override
    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND, share_tokens: float = inf) -> float:
        return inf if self.batches_out else super().due_s(now_s, priority, share_tokens)


class _AlwaysFull(Replica):
    """A replica that gets every batch as early as a full one."""

    @override
    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND, share_tokens: float = inf) -> float:
        return super().due_s(now_s, priority)


class _NothingPredicted(Replica):
    """A replica whose predictions refuse no query."""

    @override
    def has_evidence(self, now_s: float) -> bool:
        return False


class _NothingAges(TokenQueue):
    """A queue in which waiting long gives no right."""

    @override
    def aged(self, now_s: float) -> WorkItem | None:
        return None


POISON = b"poison!!"
"""The text of an input that no step survives."""
_MOST_ITEMS = 1 << 20
"""Into so many parts no batch is cut: each has one input."""


class CoreAggregator:
    """One aggregator as production runs it, less input and output."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        *,
        token_budget: int | None = None,
        slo: ServiceLevel | None = None,
        max_held_tokens: int = 500_000,
        overhead_s: float = 0.0,
        replicas: NewReplicas = all_in_use,
        coalesce: bool = False,
        without: AbstractSet[Mechanism] = frozenset(),
    ) -> None:
        """`overhead_s`: what an answer takes besides queue, network and step (tokenizing, completing).

        `coalesce`: whether queries have texts, of which equal ones may share a computation.
        """
        policy = DispatchPolicy(queue=QueuePolicy(coalesce=coalesce), replicas=replicas)
        self._policy = policy_without(without, policy)
        self._replica = replicas_without(without)
        self.dispatcher = Dispatcher(str(number), self._policy)
        if Mechanism.AGED_SHARE in without:
            self.dispatcher.queue = _NothingAges(self._policy.queue)
            self.dispatcher.packer = Packer(self.dispatcher.queue, self._policy.pack)
        self.admission = Admission(AdmissionPolicy(max_held_tokens))
        self.slo = slo
        self.expired = 0
        self._number = number
        self._engine = engine
        self._token_budget = token_budget
        self._overhead_s = overhead_s
        self._waits = False
        self._curve_is_smooth = Mechanism.CAPTURE_SIZES in without

    @property
    def held_tokens(self) -> int:
        return self.admission.total

    @property
    def waits(self) -> bool:
        """Whether every replica is busy until then, however much waits."""
        return self._waits

    def put(  # noqa: PLR0917 - a query, as every aggregator takes it
        self,
        now_s: float,
        arrived_s: float,
        deadline_s: float,
        token_count: int,
        priority: Priority = Priority.INTERACTIVE,
        text: bytes = b"",
    ) -> bool:
        """Take a query in, or refuse it as the front door does."""
        del now_s
        if self.admission.full("", token_count) is not None:
            return False
        self.admission.charge(token_count, refusable=True)
        query = Query(None, token_count, priority, "", arrived_s, deadline_s)
        self.dispatcher.queue.put(query, text, token_count)
        return True

    def due(self, now_s: float) -> tuple[Sequence[InFlightBatch], float]:
        dispatcher = self.dispatcher
        due = dispatcher.due(now_s, max_items=self._engine.step_queries)
        self.expire((*due.expired, *due.late))
        self._waits = len(dispatcher.queue) > 0 and dispatcher.replicas.due_s(now_s) > now_s
        batches = [in_flight(batch, self._number, int(batch.replica.name)) for batch in due.batches]
        return batches, due.wake_s

    def done(self, batch: InFlightBatch, report: StepReport, now_s: float) -> Sequence[float]:
        """Tell the dispatcher, and let the answered queries go."""
        sent: Batch = batch.body
        self.dispatcher.done(sent, report, now_s)
        if self.slo is not None and not sent.control:
            overhead_s = now_s - sent.packed_s - report.step_duration_s - report.staged_s + self._overhead_s
            oldest_s = min(item.waiters[0].enqueued_s for item in sent.items)
            self.slo.answered(now_s + self._overhead_s - oldest_s, overhead_s)
        answered: list[float] = []
        tokens = 0
        for item in sent.items:
            for query in item.waiters:
                if not query.done:
                    query.item = None
                    tokens += query.index
                    answered.append(query.enqueued_s)
        if tokens:
            self.admission.release(tokens, refusable=True)
        return answered

    def failed(self, batch: InFlightBatch, now_s: float, jitter: float) -> None:
        """Its queries go again as the core's retries say; proven poison is given up."""
        for item in self.dispatcher.failed(batch.body, now_s, jitter):
            self.expire(query for query in item.waiters if not query.done)

    def expire(self, queries: Iterable[Query]) -> None:
        """Give up queries: it is too late for them."""
        for query in queries:
            query.item = None
            self.expired += 1
            self.admission.release(query.index, refusable=True)

    def join(self, pod: int) -> None:
        """A replica of its own for each pod."""
        engine, curve = self._engine, self._engine.curve
        budget_controller = None
        if self.slo is not None:
            limits = StepLimits(curve.saturation_point, engine.step_tokens)
            budget_controller = self.slo.controller(limits, curve.time_s)
        if self._curve_is_smooth:
            curve = replace(curve, capture_sizes=())
        budget = self._token_budget or curve.snapped(curve.saturation_point, engine.step_tokens)
        most = 0 if self._token_budget else curve.snapped(engine.backlog_tokens, engine.step_tokens)
        self.dispatcher.replicas[str(pod)] = self._replica(
            str(pod), curve, min(budget, engine.step_tokens), self._policy.replica, budget_controller, capacity=most
        )

    def leave(self, pod: int) -> None:
        """The pod's replica goes."""
        self.dispatcher.replicas.pop(str(pod), None)

    def speeds(self) -> list[tuple[int, float]]:
        """For the demand formula."""
        replicas = self.dispatcher.replicas.in_use.values()
        return [(replica.token_budget, replica.step_time_s(replica.token_budget)) for replica in replicas]

    def at_floor(self) -> bool:
        """Whether only more pods help."""
        controlled = [
            replica.budget_controller
            for replica in self.dispatcher.replicas.in_use.values()
            if replica.budget_controller is not None
        ]
        return bool(controlled) and all(budget_controller.at_floor for budget_controller in controlled)


def in_flight(batch: Batch, aggregator: int, pod: int) -> InFlightBatch:
    """The dispatcher's batch as a model server sees it."""
    budget = batch.token_budget
    return InFlightBatch(
        aggregator,
        pod,
        batch,
        batch.token_count,
        len(batch.items),
        budget,
        max(budget, batch.token_count),
        max(batch.shared_budget, batch.token_count),
        batch.attempt > 0 or batch.isolated,
        batch.timeout_s,
        batch.priority,
        poisoned=any(item.token_ids == POISON for item in batch.items),
    )
