"""The option `--check`. What it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aggregator.request.kind import Kind
from aggregator.settings.aggregator import AggregatorSettings, GrpcSettings, KafkaSettings
from aggregator.sources.brokers import Trial


async def check(
    settings: AggregatorSettings,
    kinds: Sequence[Kind],
    trials: Sequence[Trial],
    authenticate: Callable[[GrpcSettings], object],
    shortage: str,
    *,
    topics: Sequence[KafkaSettings | None],
) -> int:
    """Print what was found; 0 if all of it works, else 1."""
    from aggregator.wings.check.check import check as try_all  # noqa: PLC0415 - 60 MB that no other command needs

    return await try_all(settings, kinds, trials, authenticate, shortage, topics=topics)
