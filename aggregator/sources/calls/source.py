"""A source whose callers wait: calls become requests, completed requests wake their callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from aggregator.observability.tracing import Tracing
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.calls.call_batcher import CallBatcher
from aggregator.sources.calls.callers import Authentication, Callers
from aggregator.sources.calls.calls import GiveUp, call_of
from aggregator.sources.calls.load import Load
from aggregator.sources.calls.models import ServedModels


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What gRPC and HTTP serve, and under which limits; `default_model` is for calls that name none."""

    default_model: str
    models: ServedModels
    give_up: GiveUp
    load: Load
    authentication: Authentication | None
    tracing: Tracing


class CallSource:
    """What gRPC and HTTP are to the pipeline. Their callers are refused where a limit is reached."""

    refusable = True

    def __init__(self, name: str, served: Served, max_inputs: int) -> None:
        self.name = name
        self._batcher = CallBatcher(served.models.next_due_s)
        defaults = Defaults(
            source=self,
            model=served.default_model,
            priority=Priority.INTERACTIVE,
            max_inputs=max_inputs,
            trusts_tenant=served.authentication is None,
        )
        self._callers = Callers(defaults, served.authentication, traced=served.tracing.enabled)

    async def receive(self) -> Sequence[Request]:
        """The next calls, several at a time while all model servers are busy."""
        return await self._batcher.receive()

    def receive_now(self) -> None:
        self._batcher.receive_now()

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        for request in requests:
            call_of(request).complete()
        yield requests

    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        """Callers are refused instead."""
