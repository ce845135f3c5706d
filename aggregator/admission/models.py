"""The configured models: their revisions in service, and the requests that wait while it has no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from aggregator.admission.bounds import Admission
from aggregator.admission.known_rows import KnownRows
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.pending import Pending
from aggregator.errors import UnknownModel, shown
from aggregator.model_server import ModelServer, ServerDescription
from aggregator.request.request import Request
from aggregator.scheduler.budget import BudgetController, NewServiceLevel, StepLimits
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica import Replica, ReplicaPolicy
from aggregator.scheduler.speed import UNMEASURED
from aggregator.scheduler.work_item import DEFAULT_TASK, Priority, Task
from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import Tokenizer

CALLS_WAIT_S = 60.0
"""How long calls wait for a server since the last one left, or since the start; later calls are refused at once."""

CALLS_AGAIN_S = 1.0
"""The time between two searches for calls to refuse: some come late, as their tokens were counted or a batch failed."""

OTHER_TASK_S = 5.0
"""Grace period: requests for a task wait this long after the first server of another task of their model."""


REPLAYS_WAIT_S = 5.0
"""Grace period: a replay waits this long for a server of the revision that answered, since the first server of its
model came or the last one of that revision left: at a start servers come one by one, and a withdrawn one is soon back.
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """A revision on trial: it serves a `share` (0 to 1) of the requests that pin none."""

    revision: str
    share: float

    def serves(self, request_id: str) -> bool:
        """Whether a request is in its share; the same request id always gets the same answer."""
        drawn = blake2b(request_id.encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(drawn, "little") < self.share * 2.0**64


@dataclass(slots=True)
class Model:
    """A configured model and its tasks, which share `admission`: the tokens that the model holds.

    `both`: it is configured to embed and to generate, so each task waits for its first server; otherwise a task that no
    server does is refused `OTHER_TASK_S` after the first server of another one. When a model that `scales_to_zero` has
    no server, calls wait for the first one up to their deadlines, as records do.
    """

    name: str
    aliases: tuple[str, ...]
    admission: Admission
    scales_to_zero: bool = False
    canary: Canary | None = None
    both: bool = False
    tasks: dict[Task, ServedTask] = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = {task: ServedTask(self, task) for task in Task}

    @property
    def revisions(self) -> list[ModelRevision]:
        """The revisions of all its tasks."""
        return [model_revision for served in self.tasks.values() for model_revision in served.revisions.values()]

    @property
    def served_since_s(self) -> float:
        """When the first server of any task came; `inf` before that (monotonic seconds)."""
        return min(served.served_since_s for served in self.tasks.values())

    def full(self) -> frozenset[Priority]:
        """The priority classes whose Kafka intake is stopped, by what is queued or pending."""
        if any(self.admission.is_filled(served.pending.tokens) for served in self.tasks.values()):
            return frozenset(Priority)
        return self.admission.stopped()


@dataclass(slots=True, eq=False)
class ServedTask:
    """One task of a model: its revisions in service, and the requests that wait for a server.

    `superseded`: revisions whose servers have left while another revision has servers. `unavailable_since_s`: when its
    last server left, or the pipeline started without one (monotonic); None while it has a server. `left_s`: when the
    last server of each revision left that is superseded. `replays_due_s`: when the first replay has waited long enough.
    `calls_refused_s`: when its calls were refused last.
    """

    model: Model
    task: Task
    revisions: dict[str, ModelRevision] = field(default_factory=dict)
    superseded: list[ModelRevision] = field(default_factory=list)
    left_s: dict[str, float] = field(default_factory=dict[str, float])
    pending: Pending = field(default_factory=Pending)
    unavailable_since_s: float | None = None
    served_since_s: float = inf
    replays_due_s: float = inf
    calls_refused_s: float = -inf

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.model.aliases

    @property
    def refused_from_s(self) -> float:
        """The time from which requests are refused while servers do other tasks only (monotonic seconds)."""
        return inf if self.model.both or self.revisions else self.model.served_since_s + OTHER_TASK_S

    @property
    def available(self) -> bool:
        return any(model_revision.servers for model_revision in self.revisions.values())

    @property
    def waits(self) -> bool:
        """Whether a request waits for a server or a batch, so that the dispatcher has something to do."""
        return len(self.pending) > 0 or any(each.dispatcher.waits for each in self.revisions.values())

    def stalled_s(self, now_s: float) -> float:
        """The seconds for which every batch sent to its servers timed out while a request waited."""
        stalled = (model_revision.dispatcher.stalled_s(now_s) for model_revision in self.revisions.values())
        return max(stalled, default=0.0)

    @property
    def calls_wait_until_s(self) -> float:
        """The time until which calls wait for a server while it has none (monotonic seconds)."""
        if self.model.scales_to_zero:
            return inf
        return -inf if self.unavailable_since_s is None else self.unavailable_since_s + CALLS_WAIT_S

    @property
    def may_hold_calls(self) -> bool:
        """Whether calls, by gRPC or HTTP, may wait here; those that are computed do not."""
        if self.pending.calls > 0:
            return True
        return self.model.admission.holds_calls and any(each.dispatcher.waits for each in self.revisions.values())

    def refuse_calls(self, now_s: float) -> tuple[list[Request], float]:
        """Remove and return the calls that waited too long for a server; and the time for the next look.

        All that waits is looked at: not in every turn, as the model's calls may be another task's.
        """
        due_s = max(self.calls_wait_until_s, self.calls_refused_s + CALLS_AGAIN_S)
        if self.calls_wait_until_s <= now_s and not self.may_hold_calls:
            return [], inf
        if now_s < due_s:
            return [], due_s
        self.calls_refused_s = now_s
        return self.take_out(lambda request: request.source.refusable), now_s + CALLS_AGAIN_S

    def choose(self, revision: str, request_id: str, before: str = "", now_s: float = inf) -> ModelRevision | None:
        """The revision to serve a request: the one it pins, or the canary's, or the one with most servers.

        Of several that could, one that has servers; one that may have been answered goes to the revision that did so
        `before`, while that has servers. None: none is known, or not yet `before`. Raises UnknownModel for a pinned
        revision that no server has, while another is served.
        """
        if not revision:
            again = self.revisions.get(before)
            if again is not None and again.servers:
                return again
            until_s = max(self.served_since_s, self.left_s.get(before, -inf)) + REPLAYS_WAIT_S
            if before and now_s < until_s:
                self.replays_due_s = min(self.replays_due_s, until_s)
                return None
            return self._choose_any(request_id)
        model_revision = self.revisions.get(revision)
        if model_revision is None and self.revisions:
            known = ", ".join(self.revisions)
            message = f"revision {shown(revision)} of {self.name} is not served: use one of {known}, or none"
            raise UnknownModel(message, "model_revision")
        return model_revision

    def _choose_any(self, request_id: str) -> ModelRevision | None:
        chosen = list(self.revisions.values())
        canary = self.model.canary
        if canary is not None and (on_trial := self.revisions.get(canary.revision)) is not None:
            others = [model_revision for model_revision in chosen if model_revision is not on_trial]
            served = any(model_revision.servers for model_revision in others)
            if on_trial.servers and (not served or canary.serves(request_id)):
                return on_trial
            chosen = others or chosen
        return max(chosen, key=lambda model_revision: len(model_revision.servers), default=None)

    def servers_changed(self, now_s: float) -> list[Request]:
        """Remove and return the requests to route again, because only another revision has servers now.

        Requests that are being counted or computed finish on the old revision, or return later: see its `retired`.
        """
        if not self.available:
            if self.unavailable_since_s is None:
                self.unavailable_since_s = now_s
            return []
        self.unavailable_since_s = None
        self.served_since_s = min(self.served_since_s, now_s)
        for revision in [revision for revision, model_revision in self.revisions.items() if not model_revision.servers]:
            self.superseded.append(self.revisions.pop(revision))
            self.left_s[revision] = now_s
        waiting = self.take_pending()
        for model_revision in self.superseded:
            model_revision.retired = True
            waiting += model_revision.abandon()
        self.superseded = []
        return waiting

    def take_pending(self) -> list[Request]:
        """Remove and return the requests that wait for a server, to route them again."""
        self.replays_due_s = inf
        return self.pending.take(lambda _: True)

    def take_out(self, gone: Callable[[Request], bool]) -> list[Request]:
        """Remove the requests for which `gone` holds from the queues; those in flight return by themselves."""
        taken = dict.fromkeys(self.pending.take(gone))
        for model_revision in self.revisions.values():
            dispatcher = model_revision.dispatcher
            waiting = [query for item in dispatcher.waiting() for query in item.waiters if not query.done]
            leaving = [query for query in waiting if gone(query.request)]
            dispatcher.queue.cancel(leaving)
            taken |= dict.fromkeys(query.request for query in leaving)
        return list(taken)


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens that a batch may hold, and `of_backlog` while many wait; a `controller` may allow less."""

    tokens: int
    of_backlog: int
    controller: BudgetController | None


NewReplica = Callable[[ModelServer, ServerDescription, Budget, ReplicaPolicy], Replica | None]
"""Makes the replica of a server that gives rows; None: it is an ordinary one. Used by `wings/both`."""


class Models:
    """The configured models, by name and alias. `tasks`: those of all models."""

    def __init__(
        self,
        models: Iterable[Model],
        policy: DispatchPolicy,
        token_budget: int | None,
        counting: Callable[[Tokenizer], Counting],
        *,
        service_level: NewServiceLevel | None = None,
        known: Callable[[ServerDescription], KnownRows] | None = None,
        replicas: Sequence[NewReplica] = (),
    ) -> None:
        """A `token_budget` overrides a `service_level`; without both it is the saturation point each server measured.

        `known` makes what a revision knows of the rows that it gave. The first of `replicas` that makes one does.
        """
        self._models = list(models)
        self.tasks = [served for model in self._models for served in model.tasks.values()]
        self._policy = policy
        self._token_budget = token_budget
        self._service_level = service_level if token_budget is None else None
        self._counting = counting
        self._known = known
        self._replicas = replicas
        self._by_name = {name: model for model in self._models for name in (model.name, *model.aliases)}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def in_service(self) -> list[ModelRevision]:
        return [model_revision for served in self.tasks for model_revision in served.revisions.values()]

    def next_due_s(self, now_s: float) -> float:
        """When the first replica takes its next interactive batch (monotonic seconds); now if there is no replica."""
        active = (model_revision.dispatcher.replicas for model_revision in self.in_service())
        return min((replicas.due_s(now_s, Priority.INTERACTIVE) for replicas in active if replicas), default=now_s)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def find(self, name: str, task: Task = DEFAULT_TASK) -> ServedTask:
        """The task of the model of that name or alias. Raises UnknownModel."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(sorted(self._by_name))
            raise UnknownModel(f"model {shown(name)} is not configured: use one of {known}", "model")
        return model.tasks[task]

    def dimensions(self, name: str) -> int:
        """The dimensions of the model's longest vectors, by name or alias; 0 if it has no server."""
        model = self._by_name.get(name)
        revisions = model.tasks[DEFAULT_TASK].revisions.values() if model is not None else ()
        return max((model_revision.description.dimensions for model_revision in revisions), default=0)

    def join(self, server: ModelServer, tokenizer: Tokenizer) -> list[ServedTask]:
        """Add a server; its revision is in service from now on. Returns the tasks of its model that it does."""
        joined: list[ServedTask] = []
        replicas: list[Replica] = []
        for task, description in server.description.by_task.items():
            served = self._by_name[description.model].tasks[task]
            model_revision = served.revisions.get(description.model_revision)
            if model_revision is not None and not model_revision.takes(description):
                served.superseded.append(model_revision)
                model_revision = None
            if model_revision is None:
                level = self._service_level if description.details.meets_goal else None
                slo = level() if level is not None else None
                known = self._known(description) if self._known is not None else None
                counting = self._counting(tokenizer)
                model_revision = ModelRevision(description, tokenizer, counting, self._policy, slo=slo, known=known)
                served.revisions[description.model_revision] = model_revision
            replica = self._replica(server, description, model_revision)
            model_revision.add(server, replica)
            joined.append(served)
            replicas.append(replica)
        for replica, sibling in zip(replicas, reversed(replicas), strict=True):
            replica.sibling = sibling if sibling is not replica else None
        return joined

    def _replica(self, server: ModelServer, description: ServerDescription, model_revision: ModelRevision) -> Replica:
        """A replica with its token budget: the setting, the measured one, or a controller where there is a target."""
        curve, capacity = description.curve or UNMEASURED, description.step_token_capacity
        controller, slo, policy = None, model_revision.slo, self._policy.replica
        if slo is not None:
            limits = StepLimits(curve.saturation_point, capacity)
            controller = slo.controller(limits, curve.time_s)
        tokens = min(self._token_budget or curve.snapped(curve.saturation_point, capacity), capacity)
        own = description.details.replica(description, tokens, policy, model_revision.usage)
        if own is not None:
            return own
        most = 0 if self._token_budget else curve.snapped(curve.backlog_tokens, capacity)
        budget = Budget(tokens, most, controller)
        for new in self._replicas:
            if (replica := new(server, description, budget, policy)) is not None:
                return replica
        return Replica(description.address, description.curve, tokens, policy, controller, capacity=most)

    def leave(self, server: ModelServer) -> list[ServedTask]:
        """Remove a server; its revision stays until another one can serve the requests that wait for it."""
        left: list[ServedTask] = []
        for task, description in server.description.by_task.items():
            served = self._by_name[description.model].tasks[task]
            model_revision = served.revisions.get(description.model_revision)
            if model_revision is not None:
                model_revision.remove(server)
            left.append(served)
        return left
