"""The Batch API as an extension of the HTTP door; without a store it costs no import and no route."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from aggregator.request.request import Source
from aggregator.settings.aggregator import AggregatorSettings
from aggregator.sources.extension import Extension, ExtensionParts
from aggregator.wings.batches.settings import BatchesSettings
from k8s.pod.errors import StartError


def _open(settings: AggregatorSettings, parts: ExtensionParts) -> Source | None:
    batches = settings.group(BatchesSettings)
    if batches is None or not batches.store:
        return None
    _check_others(settings)
    from aggregator.wings.batches.parts import open_source  # noqa: PLC0415 - libraries that nothing else needs

    return open_source(settings, batches, parts)


def _check(settings: AggregatorSettings, timeout_s: float) -> tuple[str, Awaitable[Sequence[str]]] | None:
    batches = settings.group(BatchesSettings)
    if batches is None or not batches.store:
        return None
    return f"batches.store {batches.store}", _try(settings, batches.store, timeout_s)


async def _try(settings: AggregatorSettings, store: str, timeout_s: float) -> Sequence[str]:
    _check_others(settings)
    from aggregator.wings.batches.parts import try_store  # noqa: PLC0415

    return await try_store(store, timeout_s)


def _check_others(settings: AggregatorSettings) -> None:
    if not (settings.kafka.enabled and settings.http.bind):
        raise StartError("batches.store needs kafka.enabled, which says who computes what, and http.bind")


BATCHES = Extension(_open, _check)
