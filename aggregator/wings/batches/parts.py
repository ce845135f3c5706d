"""The parts of the Batch API, made and connected: store, records, source and routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from aggregator.errors import Code, TokenbatchError
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.extension import ExtensionParts
from aggregator.sources.kafka.connection import prepare_topics
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.metrics import BatchMetrics
from aggregator.wings.batches.objects import Pointer
from aggregator.wings.batches.routes import BatchRoutes
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.batches.source import BatchSource
from aggregator.wings.batches.store import Store, nothing_stays
from k8s.pod.errors import StartError


class NoRecords(TokenbatchError):
    """The records of a batch cannot be written."""

    code = Code.UNAVAILABLE
    retriable = True
    retry_after_s = 1.0


class ConnectedBatches(BatchSource):
    """The source with what it reads and writes."""

    kafka: KafkaSettings
    producer: KafkaProducer

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Try the store, and make sure that the topic is there. Raises StartError."""
        await _within(self._desk.store, timeout_s)
        await prepare_topics(self.kafka, timeout_s, replies=False)
        await self.producer.start()

    @override
    async def close(self, timeout_s: float) -> None:
        await self._desk.close()  # or the producer waits for records that the broker does not take
        await self.producer.close(timeout_s)
        await super().close(timeout_s)


def open_source(batches: BatchesSettings, kafka: KafkaSettings, parts: ExtensionParts) -> ConnectedBatches:
    """The source; its routes are mounted. Raises StartError."""
    http, served = parts.http, parts.served
    assert http is not None, "Batches were opened without HTTP. This is a bug."
    producer = KafkaProducer(kafka, tracing=served.tracing)

    async def produce(pointers: Sequence[Pointer]) -> None:
        records = [
            OutgoingRecord(batches.topic, None, f"{each.batch}/{each.chunk}".encode(), msgspec.json.encode(each), ())
            for each in pointers
        ]
        async for delivered in producer.send(records):
            for _, error in delivered:
                if error is not None:
                    raise NoRecords(f"Kafka refuses the records of a batch: {type(error).__name__}")

    def on_fenced(records: Sequence[InFlightRecord]) -> None:
        parts.forget(source.revoked(records))

    desk = Desk(Store(batches.store), batches, produce, BatchMetrics(served.load.metrics.buffer))
    source = ConnectedBatches(
        desk,
        KafkaConsumer(kafka, on_fenced, served.load.metrics, intake=parts.intake),
        http.service.forms,
        default_model=served.default_model,
        dimensions=served.models.dimensions,
        forget=parts.forget,
        name_of=lambda name: served.models.find(name).name if name in served.models else "",
    )
    source.kafka, source.producer = kafka, producer
    http.service.mounted.append(BatchRoutes(http.service.calls, desk, http.service.forms))
    return source


async def try_store(url: str, timeout_s: float) -> Sequence[str]:
    """Write and read it; nothing of that stays. Raises StartError."""
    with nothing_stays(url):
        await _within(Store(url), timeout_s)
    return ()


async def _within(store: Store, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await store.probe()
    except TimeoutError:
        raise StartError(f"batches.store {store.url}: it does not answer within {timeout_s:g} s") from None
