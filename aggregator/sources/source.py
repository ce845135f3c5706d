"""The interface of a source of requests: Kafka and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from aggregator.request import Request
from aggregator.scheduler.work_item import Priority

KAFKA, GRPC = "kafka", "grpc"
"""Their names."""

Receive = Callable[[], Awaitable[Sequence[Request]]]
"""Waits for the next requests, at least one; none once the source has ended."""


class Source(Protocol):
    """Where requests come from, and where their replies go."""

    @property
    def name(self) -> str:
        """As metrics call it."""
        ...

    @property
    def refusable(self) -> bool:
        """Whether its senders wait for an answer, so that they are refused at a limit; else it is paused."""
        ...

    @property
    def replayed(self) -> bool:
        """Whether a request without a reply is read again later."""
        ...

    @property
    def receivers(self) -> Sequence[Receive]:
        """They run concurrently, and each returns requests."""
        ...

    def receive_now(self) -> None:
        """A model server became less busy: requests that wait for others are received now."""
        ...

    def accept(self, request: Request) -> None:
        """A request is routed. Raises InvalidRequest if its reply could be too large to write."""
        ...

    def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests of this source; yields each once its reply is delivered.

        A request whose reply can never be delivered has failed from then on, whatever its outcome was.
        """
        ...

    async def delivered(self) -> None:
        """Wait until everything is written that `reply` left to write."""
        ...

    def newly_stuck(self) -> Callable[[Request], bool] | None:
        """Which requests hold a committed offset back so far that they are to be promoted; None if unchanged."""
        ...

    def pause(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause topics whose own model is `away`, or that ask for a model that is `full` for their class.

        Models are given by name or alias.
        """
        ...
