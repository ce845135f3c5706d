"""What the pipeline asks of the world, in the order of the data: records, token counts, engines, replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aggregator.request import Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.kafka.consumer.committed_offset import Lease

LetGo = Callable[[Sequence[Request]], None]
"""Frees what settled requests held."""


class KafkaPath(Protocol):
    """The Kafka side of the pipeline: requests in, answers and commits out."""

    async def receive(self) -> Sequence[Request]:
        """The next requests, at least one; empty once fetching has been stopped.

        What could not be decoded comes as a request whose every input has failed already.
        """
        ...

    async def receive_large(self) -> Sequence[Request]:
        """The same of those that are large, which take longer and hold up no others; none of topics that are held."""
        ...

    def accept(self, request: Request) -> None:
        """Note which model its topic's records ask for.

        Raises InvalidRequest for a request whose reply could not be written, however it turns out.
        """
        ...

    async def settle(self, requests: Sequence[Request], let_go: LetGo) -> None:
        """Reply, wait for the broker's word on each, then free the offsets; what is to be kept is written after.

        A request whose reply can never be written has failed from then on, whatever its outcome was. `let_go` is
        told of each once its word has come, of all together unless some are waited for.
        """
        ...

    async def written(self) -> None:
        """Wait for what is still to be written after `settle`."""
        ...

    def stuck(self) -> Sequence[Lease]:
        """Leases that hold their partition's watermark so far back that their inputs are to be aged."""
        ...

    def drop_fenced(self) -> None:
        """Forget what was not yet received of partitions that were given back: whoever reads it next redoes it."""
        ...

    def hold(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause exactly the topics whose own model is `away`, or of whose models one is `full` for their class.

        Models are given by name or alias; a topic's are its own, and those that its records asked for.
        """
        ...
