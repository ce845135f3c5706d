"""The models this aggregator routes to: each revision with its tokenizer, its queue and its lanes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from aggregator.core.admission import Admission
from aggregator.core.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.core.lanes import UNMEASURED, Lane
from aggregator.core.memory import step_budget
from aggregator.core.outlook import Outlook
from aggregator.core.query import Entry, Query
from aggregator.core.queue import TokenQueue
from aggregator.core.steering import Promise, SlaGoal, StepLimits
from aggregator.errors import InvalidRequest, UnknownModel
from aggregator.ports import Engine, ServerDescription, TokenBatch, Tokenizer
from aggregator.request import Options, Request
from protos.embedding.v1 import embedding_pb2 as pb


class Counting(Protocol):
    """Token counts off the event loop, several callers' texts at once."""

    async def count(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize; the order of `texts` is kept."""
        ...


class CountingFactory(Protocol):
    """Makes the Counting of one tokenizer."""

    def __call__(self, tokenizer: Tokenizer) -> Counting:
        """The Counting of `tokenizer`."""
        ...


class Served:
    """One revision of a model, while servers of it are known.

    `under_way` are the batches that are out. Once `retired` it sends nothing more: what still comes to wait here is
    to be taken out by `abandon` at once.
    """

    def __init__(
        self,
        description: ServerDescription,
        tokenizer: Tokenizer,
        counting: Counting,
        policy: DispatchPolicy,
        goal: SlaGoal | None = None,
    ) -> None:
        self.description = description
        self.tokenizer = tokenizer
        self.counting = counting
        self.dispatcher = Dispatcher(f"{description.model}-{uuid.uuid4().hex[:8]}", policy)
        self.outlook = Outlook(self.dispatcher.queue)
        self.promise = Promise(goal) if goal is not None else None
        self.engines: dict[str, Engine] = {}
        self.under_way: set[Batch] = set()
        self.retired = False
        self.prompts: dict[int, str] = {
            pb.INPUT_TYPE_UNSPECIFIED: "",
            pb.INPUT_TYPE_QUERY: description.query_prompt,
            pb.INPUT_TYPE_DOCUMENT: description.document_prompt,
        }
        self.resolve = lru_cache(maxsize=256)(self._resolve)

    def add(self, engine: Engine, lane: Lane) -> None:
        """A server of this revision is ready."""
        self.engines[lane.name] = engine
        self.dispatcher.lanes[lane.name] = lane

    def remove(self, engine: Engine) -> None:
        """It is gone; a later one at the same address is another engine."""
        address = engine.description.address
        if self.engines.get(address) is engine:
            del self.engines[address], self.dispatcher.lanes[address]

    def abandon(self) -> list[Request]:
        """Take out every request that waits here, whole: what is under way of it is computed for nobody."""
        dispatcher = self.dispatcher
        waiting = [(query, entry) for entry in dispatcher.waiting() for query in entry.waiters if not query.done]
        requests = dict.fromkeys(query.owner for query, _ in waiting)
        for query, entry in waiting:
            dispatcher.queue.cancel(query, entry)
        for batch in self.under_way if requests else ():
            for query in (query for entry in batch.entries for query in entry.waiters):
                query.done = query.done or query.owner in requests
        return list(requests)

    def _resolve(self, options: Options) -> Options:
        """Fill in what the model decides; raises InvalidRequest for what it cannot do."""
        description = self.description
        dimensions = options.dimensions
        if dimensions and dimensions != description.dimensions and dimensions not in description.matryoshka_dimensions:
            raise InvalidRequest(
                f"dimensions {dimensions}: {description.model} gives {description.dimensions}"
                + (f" or one of {sorted(description.matryoshka_dimensions)}" * bool(description.matryoshka_dimensions))
            )
        normalize = description.normalizes if options.normalize is None else options.normalize
        return replace(options, dimensions=dimensions or description.dimensions, normalize=normalize)


@dataclass(slots=True)
class Model:
    """One configured model: its revisions in service, what it holds, and what waits for a first server."""

    name: str
    aliases: tuple[str, ...]
    admission: Admission
    revisions: dict[str, Served] = field(default_factory=dict)
    parked: list[Request] = field(default_factory=list)
    unavailable_since_s: float | None = None

    @property
    def available(self) -> bool:
        """Whether some server can take a batch."""
        return any(served.engines for served in self.revisions.values())

    def waiting(self) -> list[tuple[Query, tuple[TokenQueue, Entry]]]:
        """Queries that are not under way, each with its place; for rare sweeps."""
        return [
            (query, (served.dispatcher.queue, entry))
            for served in self.revisions.values()
            for entry in served.dispatcher.waiting()
            for query in entry.waiters
            if not query.done
        ]

    def expire_parked(self, now_s: float) -> list[Request]:
        """Take out the parked requests whose deadline has passed."""
        late = [request for request in self.parked if request.deadline_s <= now_s]
        if late:
            self.parked = [request for request in self.parked if request.deadline_s > now_s]
        return late

    def choose(self, revision: str) -> Served | None:
        """The revision to serve a request: the one it pins, else the one with most servers; None: none is known.

        Raises UnknownModel for a pinned revision that no server has, while another is served.
        """
        if not revision:
            return max(self.revisions.values(), key=lambda served: len(served.engines), default=None)
        served = self.revisions.get(revision)
        if served is None and self.revisions:
            known = ", ".join(self.revisions)
            raise UnknownModel(f"revision {revision} of {self.name} is not served: use one of {known}, or none")
        return served


class Models:
    """Every configured model by name and alias."""

    def __init__(
        self,
        models: Iterable[Model],
        policy: DispatchPolicy,
        token_budget: int | None,
        counting: CountingFactory,
        goal: SlaGoal | None = None,
    ) -> None:
        """A `token_budget` overrides the `goal`; without both it is the saturation point each server measured."""
        self._models = tuple(models)
        self._policy = policy
        self._token_budget = token_budget
        self._goal = goal if token_budget is None else None
        self._counting = counting
        self._by_name = {name: model for model in self._models for name in (model.name, *model.aliases)}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def served(self) -> list[Served]:
        """Every revision in service."""
        return [served for model in self._models for served in model.revisions.values()]

    def find(self, name: str) -> Model:
        """The model of that name or alias; an empty name means the only model there is."""
        if not name and len(self._models) == 1:
            return self._models[0]
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(sorted(self._by_name))
            raise UnknownModel(f"model {name!r} is not configured: use one of {known}")
        return model

    def join(self, engine: Engine, tokenizer: Tokenizer) -> Model:
        """A server is ready; its revision is in service from now on."""
        description = engine.description
        model = self._by_name[description.model]
        served = model.revisions.get(description.model_revision)
        if served is None:
            served = Served(description, tokenizer, self._counting(tokenizer), self._policy, self._goal)
            model.revisions[description.model_revision] = served
        served.add(engine, self._lane(description, served.promise))
        return model

    def _lane(self, description: ServerDescription, promise: Promise | None) -> Lane:
        """A lane with its budget: the setting's, the controller's where something is promised, or the measured one."""
        curve, capacity = description.curve or UNMEASURED, description.step_token_capacity
        steering = None
        if promise is not None:
            limits = StepLimits(curve.saturation_point, capacity, description.max_input_tokens)
            steering = promise.steer(limits, curve.time_s(promise.goal.min_tokens))
        budget = step_budget(self._token_budget or curve.saturation_point, capacity)
        return Lane(description.address, description.curve, budget, self._policy.lane, steering)

    def leave(self, engine: Engine) -> Model:
        """A server is gone; its revision stays as long as no other can take over what waits for it."""
        description = engine.description
        model = self._by_name[description.model]
        served = model.revisions.get(description.model_revision)
        if served is not None:
            served.remove(engine)
        return model


def retire(model: Model) -> list[Request]:
    """Drop the revisions without servers while another has some; returns the requests that waited for them.

    What is being counted for them, or under way there, may come back later: see `Served.retired`.
    """
    waiting: list[Request] = []
    if model.available:
        for revision in [revision for revision, served in model.revisions.items() if not served.engines]:
            served = model.revisions.pop(revision)
            served.retired = True
            waiting += served.abandon()
    return waiting
