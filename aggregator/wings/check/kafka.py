"""Try the brokers and topics of Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import (
    compacted_topics,
    connected,
    listed,
    reach,
    topic_settings,
    topics_missing,
    topics_seen,
    topics_written,
)
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX
from aggregator.wings.check.rights import lacking
from k8s.pod.errors import StartError

_DEAD_LETTER_MARGIN_BYTES = 64 * 1024  # for the headers that a dead letter adds


async def check_kafka(settings: KafkaSettings, timeout_s: float, *, replies: bool = True) -> Sequence[str]:
    """Check brokers, rights, the topics without creating any, and limits that do not fit each other; returns warnings.

    A broker that does not answer is tried once: nothing starts beside a check. Without `replies` its topics are written
    too, and no others. Raises StartError.
    """
    await reach(settings, timeout_s / 2)
    warnings: list[str] = []
    read = [topic.name for topic in settings.topics]
    written = topics_written(settings) if replies else read
    wanted = list(dict.fromkeys([*read, *written]))
    async with connected(settings, timeout_s) as admin:
        partitions = await topics_seen(admin)
        if missing := topics_missing(settings, partitions, wanted):
            warnings.append(f"kafka: {listed(missing)} not there yet, and will be created at start")
        there = [name for name in wanted if name in partitions]
        if rights := await lacking(
            admin, [*filter(there.__contains__, read)], [*filter(there.__contains__, written)], settings.group_id
        ):
            raise StartError(f"kafka: this client lacks {', '.join(rights)}: grant it")
        limits = {name: int(size) for name, size in (await topic_settings(admin, there, "max.message.bytes")).items()}
        if compacted := await compacted_topics(admin, settings, partitions):
            warnings.append(f"kafka: {listed(compacted)} compacted: a later reply replaces an earlier one of its key")
    for topic in settings.topics:
        dead = topic.name + DEAD_LETTER_SUFFIX
        if topic.name in limits and dead in limits and limits[dead] < limits[topic.name] + _DEAD_LETTER_MARGIN_BYTES:
            warnings.append(
                f"kafka: max.message.bytes of {dead} is {limits[dead]}: make it {_DEAD_LETTER_MARGIN_BYTES} more than"
                f" that of {topic.name} ({limits[topic.name]}), or the values of large dead letters are left out"
            )
        if partitions.get(dead, 0) < partitions.get(topic.name, 0) and dead in partitions:
            warnings.append(f"kafka: {dead} has fewer partitions than {topic.name}")
    return warnings
