"""A hook for formats around the values of records: by default there is none, and a value is the request itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.request.kind import Kind
from aggregator.sources.kafka.offsets import Header


class Envelope(ABC):
    """The envelope of one record, in which its reply goes too. `holds_value`: the request is in it, not beside it."""

    holds_value: bool

    @abstractmethod
    def opened(self, value: bytes, max_inputs: int) -> tuple[bytes, Mapping[str, bytes], Envelope]:
        """The request in a value, what its headers would say, and the envelope with all that is known of it.

        Raises InvalidRequest or Undecodable.
        """

    @abstractmethod
    def reply(
        self, value: bytes, headers: Sequence[Header], *, reply_id: str, group_id: str, kind: Kind, request_id: str
    ) -> tuple[bytes, Sequence[Header]]:
        """Value and headers of the record with a reply; those of the reply begin with its content type."""


@dataclass(frozen=True, slots=True)
class EnvelopeFormat:
    """A format of envelopes. `headers`: whose values it reads; `of`: a record's envelope by them, None if it has none.

    Used by `wings/cloud_events`.
    """

    headers: frozenset[str]
    of: Callable[[Mapping[str, bytes]], Envelope | None]
