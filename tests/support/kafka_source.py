"""The Kafka side of a pipeline over the in-memory Kafka, in virtual time; tests say what becomes of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from aggregator.admission.ledger import Intake
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.registry import KINDS, PROGRESS
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.source import KafkaSource
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.fake_kafka import FakeKafka, FakeProducer


class KafkaSourceOverFakes:
    """A Kafka with these topics, and a source that reads it as the settings say."""

    def __init__(
        self,
        settings: KafkaSettings,
        *topics: str,
        intake: Intake | None = None,
        dimensions: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`intake`: the part of the ledger; `dimensions`: of a model's vectors."""
        self.kafka = FakeKafka(*topics)
        self.consumer = self.kafka.consumer(settings, intake=intake)
        self.producer = FakeProducer(self.kafka)
        self.buffer = MetricsBuffer()
        self.wall_ahead_s = 0.0
        self.source = KafkaSource(
            settings,
            "m",
            self.consumer,
            self.producer,
            dimensions=dimensions,
            metrics=Metrics(self.buffer),
            tracing=Tracing(),
            kinds=KINDS,
            progress=PROGRESS,
            clock=lambda: asyncio.get_running_loop().time(),
            wall_clock=lambda: asyncio.get_running_loop().time() + self.wall_ahead_s,
        )

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[Self]:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.consumer.run())
            yield self
            running.cancel()

    def counted(self, name: str) -> Mapping[str, float]:
        """What a counter counted, by the last of its labels; what it counted nothing of is left out."""
        (metric,) = (metric for metric in self.buffer.collect().metrics if metric.name == name)
        points: Sequence[Any] = metric.data.data_points
        return {list(point.attributes.values())[-1]: point.value for point in points if point.value}
