"""Reach the Kafka cluster: security, and topics checked or created at start."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.settings import KafkaSettings


async def prepare_topics(settings: KafkaSettings, timeout_s: float) -> None:
    """Make sure that every query, reply and dead-letter topic is there, creating them where that is allowed.

    Raises StartError that says what to do: no broker reached, not authorised, a topic missing.
    """
    raise NotImplementedError


async def check(settings: KafkaSettings, timeout_s: float) -> Sequence[str]:
    """The same without creating anything; returns warnings. Raises StartError."""
    raise NotImplementedError
