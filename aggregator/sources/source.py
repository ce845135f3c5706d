"""What a source of requests is to the pipeline. Kafka and gRPC are two."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from aggregator.request import Request
from aggregator.scheduler.work_item import Priority

KAFKA, GRPC = "kafka", "grpc"
"""Their names."""

Receive = Callable[[], Awaitable[Sequence[Request]]]
"""Waits for the next requests, at least one; none once the source takes in no more."""


class Source(Protocol):
    """Where requests come from, and where their replies go."""

    @property
    def name(self) -> str:
        """As metrics call it."""
        ...

    @property
    def refusable(self) -> bool:
        """Whether its senders wait, so that they are refused at a bound; else it is paused there."""
        ...

    @property
    def replayed(self) -> bool:
        """Whether a request that is left without a reply comes again, to whoever reads it next."""
        ...

    @property
    def receivers(self) -> Sequence[Receive]:
        """Each brings requests beside the others."""
        ...

    def receive_now(self) -> None:
        """A model server became less busy: requests that wait to be received together wait no longer."""
        ...

    def accept(self, request: Request) -> None:
        """A request is routed. Raises InvalidRequest if its reply could not be written, however it turns out."""
        ...

    def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests of this source; yields each once its reply is delivered.

        A request whose reply can never be delivered has failed from then on, whatever its outcome was.
        """
        ...

    async def delivered(self) -> None:
        """Wait for what is still to be written after `reply`."""
        ...

    def newly_stuck(self) -> Callable[[Request], bool] | None:
        """Which requests hold back so much that their inputs are to be promoted; None: the same as last time."""
        ...

    def pause(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Take in no more where the own model is `away`, or where a model that is asked for is `full` for the class.

        Models are given by name or alias.
        """
        ...
