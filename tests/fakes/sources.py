"""Sources that only remember: what a test needs where a request must have come from somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from aggregator.request import Origin, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources import source
from aggregator.sources.source import Receive, Source


class AnyOrigin:
    """Of requests to which nobody replies."""

    def progressed(self) -> None:
        """Nobody listens."""


@dataclass(eq=False)
class FakeSource:
    """What the pipeline receives from, replies to and pauses; `incoming` are its receivers' next requests."""

    name: str
    refusable: bool
    replayed: bool
    incoming: list[asyncio.Queue[Sequence[Request]]] = field(default_factory=list[asyncio.Queue[Sequence[Request]]])
    replied: list[Request] = field(default_factory=list[Request])
    paused: Callable[[str, Priority], bool] = field(default=lambda _, __: False)
    stuck: list[Origin] = field(default_factory=list[Origin])
    delivering: asyncio.Event = field(default_factory=asyncio.Event)
    on_reply: Callable[[Request], None] = field(default=lambda _: None)
    _told: list[Origin] = field(default_factory=list[Origin])

    def __post_init__(self) -> None:
        self.delivering.set()

    @property
    def receivers(self) -> Sequence[Receive]:
        return [queue.get for queue in self.incoming]

    def receive_now(self) -> None:
        pass

    def accept(self, request: Request) -> None:
        del request

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        await self.delivering.wait()
        self.replied += requests
        for request in requests:
            self.on_reply(request)
        yield requests

    async def delivered(self) -> None:
        pass

    def newly_stuck(self) -> Callable[[Request], bool] | None:
        if self.stuck == self._told:
            return None
        self._told = list(self.stuck)
        return lambda request: request.origin in self._told

    def pause(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        self.paused = lambda model, priority: away(model) or full(model, priority)


def kafka() -> FakeSource:
    """Like Kafka, with small requests and large ones beside them."""
    return FakeSource(source.KAFKA, refusable=False, replayed=True, incoming=[asyncio.Queue(), asyncio.Queue()])


def grpc() -> FakeSource:
    """Like gRPC."""
    return FakeSource(source.GRPC, refusable=True, replayed=False, incoming=[asyncio.Queue()])


KAFKA, GRPC = kafka(), grpc()
"""For requests that no pipeline takes."""


async def reply_all(to: Source, requests: Sequence[Request]) -> list[Request]:
    """Reply to requests; returns them in the order in which their replies were delivered."""
    return [request async for delivered in to.reply(requests) for request in delivered]
