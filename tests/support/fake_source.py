"""Sources that only remember: what a test needs where a request must have come from somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from aggregator.request import request as requests
from aggregator.request.request import Options, Outcome, Receive, Request, Source
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.embedding import EMBEDDING


@dataclass(eq=False)
class FakeSource(Source):
    """What the pipeline receives from, replies to and pauses.

    `incoming` has the next requests, and in a second queue the large ones.
    """

    name: str
    refusable: bool
    incoming: list[asyncio.Queue[Sequence[Request]]] = field(default_factory=list[asyncio.Queue[Sequence[Request]]])
    replied: list[Request] = field(default_factory=list[Request])
    paused: Callable[[str, Priority], bool] = field(default=lambda _, __: False)
    delivering: asyncio.Event = field(default_factory=asyncio.Event)
    on_reply: Callable[[Request], None] = field(default=lambda _: None)
    on_reserve: Callable[[Request], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self.delivering.set()

    @property
    def receivers(self) -> Sequence[Receive]:
        return [queue.get for queue in self.incoming]

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        await self.delivering.wait()
        self.replied += requests
        for request in requests:
            self.on_reply(request)
        yield requests

    def reserve(self, request: Request) -> None:
        self.on_reserve(request)

    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        self.paused = lambda model, priority: away(model, Task.EMBED) or full(model, priority)


def kafka() -> FakeSource:
    """Like Kafka, with small requests and large ones beside them."""
    return FakeSource(requests.KAFKA, refusable=False, incoming=[asyncio.Queue(), asyncio.Queue()])


def grpc() -> FakeSource:
    return FakeSource(requests.GRPC, refusable=True, incoming=[asyncio.Queue()])


KAFKA, GRPC = kafka(), grpc()
"""For requests that no pipeline takes."""


def any_request(*inputs: str | bytes, outcomes: Sequence[Outcome | None] | None = None, **changes: Any) -> Request:
    """A call for the model m, with changes; with `outcomes` it is complete."""
    fields: dict[str, Any] = {
        "kind": EMBEDDING,
        "request_id": "q",
        "model": "m",
        "model_revision": "",
        "options": Options(),
        "priority": Priority.DEFAULT,
        "source": GRPC,
        "tenant": "",
        "received_s": 0.0,
        "deadline_s": inf,
        "origin": object(),
        "outcomes": [None] * len(inputs) if outcomes is None else outcomes,
        "remaining": len(inputs) if outcomes is None else 0,
    }
    return Request(inputs=[*inputs], **{**fields, **changes})


async def take(source: Source, count: int) -> list[Request]:
    """The next requests."""
    taken: list[Request] = []
    async with asyncio.timeout(60):
        while len(taken) < count:
            taken += await source.receivers[0]()
    return taken


async def reply_all(to: Source, requests: Sequence[Request]) -> list[Request]:
    """Reply to requests; returns them in the order in which their replies were delivered."""
    return [request async for delivered in to.reply(requests) for request in delivered]
