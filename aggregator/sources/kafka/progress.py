"""A hook for records about requests that are not complete yet: by default there are none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aggregator.observability.metrics import Metrics
from aggregator.request.request import Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer


@dataclass(frozen=True, slots=True)
class ProgressParts:
    """The parts that a writer of progress is made of. `known`: whether a model is configured."""

    settings: KafkaSettings
    producer: KafkaProducer
    metrics: Metrics
    known: Callable[[str], bool]
    clock: Callable[[], float]


class Progress(ABC):
    """Writes records about requests in progress; `wings/generation` writes texts as they grow."""

    @abstractmethod
    def grew(self, request: Request) -> None:
        """A request has grown."""

    @abstractmethod
    async def end(self, requests: Sequence[Request]) -> list[OutgoingRecord]:
        """The last records of completed requests."""

    @abstractmethod
    def delivered(self, errors: Sequence[Exception | None]) -> None:
        """Records were acknowledged, or refused."""


OpenProgress = Callable[[ProgressParts], Progress]
