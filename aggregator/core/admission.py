"""Bound what one model holds, in tokens per source and class, so that background work can never lock a caller out."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.core.query import Priority, Source


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`max_tokens` is the whole bound; a class from Kafka stops at its share of it.

    It starts again below `resume_share` of where it stopped, so that intake does not flutter.
    """

    max_tokens: int
    kafka_shares: tuple[float, float, float] = (1.0, 0.75, 0.5)
    resume_share: float = 0.8


class Admission:
    """Tokens held by one model: from intake until the answer is acknowledged."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._held = {(source, priority): 0 for source in Source for priority in Priority}
        self._total = 0
        self._stopped: set[Priority] = set()

    @property
    def total(self) -> int:
        """Tokens held, all sources and classes."""
        return self._total

    def held(self, source: Source, priority: Priority) -> int:
        """Tokens held of one source and class."""
        return self._held[source, priority]

    def admits(self, token_count: int) -> bool:
        """Whether a gRPC request of so many tokens fits the whole bound; one alone always does."""
        return not self._total or self._total + token_count <= self._policy.max_tokens

    def charge(self, source: Source, priority: Priority, token_count: int) -> None:
        """Count a request's tokens in. What Kafka delivered is never refused: intake stops before."""
        self._held[source, priority] += token_count
        self._total += token_count

    def release(self, source: Source, priority: Priority, token_count: int) -> None:
        """Count a request's tokens out, once its answer is acknowledged."""
        self._held[source, priority] -= token_count
        self._total -= token_count
        assert self._held[source, priority] >= 0, "More tokens were released than were held. This is a bug."

    def stopped(self) -> frozenset[Priority]:
        """The classes that Kafka intake must not bring more of now."""
        for priority, share in zip(Priority, self._policy.kafka_shares, strict=True):
            limit = share * self._policy.max_tokens
            if self._total >= limit:
                self._stopped.add(priority)
            elif self._total < limit * self._policy.resume_share:
                self._stopped.discard(priority)
        return frozenset(self._stopped)
