"""The Batch API as an extension of the HTTP door; without a store it costs no import and no route."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from aggregator.request.request import Source
from aggregator.settings.aggregator import AggregatorSettings, KafkaSettings, TopicSettings
from aggregator.sources.extension import Extension, ExtensionParts
from aggregator.wings.batches.settings import BatchesSettings
from k8s.pod.errors import StartError


def _open(settings: AggregatorSettings, parts: ExtensionParts) -> Source | None:
    batches = _enabled(settings)
    if batches is None:
        return None
    kafka = _checked(settings, batches)
    from aggregator.wings.batches.parts import open_source  # noqa: PLC0415 - libraries that nothing else needs

    return open_source(batches, kafka, parts)


def _enabled(settings: AggregatorSettings) -> BatchesSettings | None:
    batches = settings.group(BatchesSettings)
    return batches if batches is not None and batches.store else None


def _kafka(settings: AggregatorSettings) -> KafkaSettings | None:
    batches = _enabled(settings)
    if batches is None or not settings.kafka.enabled:
        return None
    topic = TopicSettings(name=batches.topic, priority="background")
    return settings.kafka.model_copy(update={"topics": (topic,), "group_id": f"{settings.kafka.group_id}-batches"})


def _checked(settings: AggregatorSettings, batches: BatchesSettings) -> KafkaSettings:
    """The topic of chunks and the group that reads it. Raises StartError for what does not fit."""
    from aggregator.sources.kafka.connection import topics_wanted  # noqa: PLC0415 - Kafka's libraries

    kafka = _kafka(settings)
    if kafka is None or not settings.http.bind:
        raise StartError("batches.store needs kafka.enabled, which says who computes what, and http.bind")
    if batches.topic in topics_wanted(settings.kafka):
        raise StartError(f"batches.topic {batches.topic} is a topic of requests or replies: give batches their own")
    return kafka


def _check(settings: AggregatorSettings, timeout_s: float) -> tuple[str, Awaitable[Sequence[str]]] | None:
    batches = _enabled(settings)
    return (f"batches.store {batches.store}", _try(settings, batches, timeout_s)) if batches is not None else None


async def _try(settings: AggregatorSettings, batches: BatchesSettings, timeout_s: float) -> Sequence[str]:
    _checked(settings, batches)
    from aggregator.wings.batches.parts import try_store  # noqa: PLC0415

    return await try_store(batches.store, timeout_s)


BATCHES = Extension(_open, _check, _kafka)
