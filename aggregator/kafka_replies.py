"""Write settled requests as reply records, and records that failed as dead letters: the wire format of the way back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from google.protobuf.json_format import MessageToJson

from aggregator.answer import response
from aggregator.core.watermark import Lease
from aggregator.errors import Code, InvalidRequest, TokenbatchError
from aggregator.kafka_codec import Header, Refused, ReplyRoute
from aggregator.ports import OutgoingRecord, Record
from aggregator.request import Failure, Request
from aggregator.vectors import CompletedBatch, Vector
from protos.embedding.v1 import embedding_pb2 as pb


def reply_id(topic: str, partition: int, offset: int, request_id: str) -> str:
    """The same for every delivery of the same record; 32 hexadecimal digits."""
    return hashlib.blake2b(f"{topic}\0{partition}\0{offset}\0{request_id}".encode(), digest_size=16).hexdigest()


def encode_replies(requests: Sequence[Request]) -> list[OutgoingRecord]:
    """The reply of each settled request, in its format, to its route, with its key."""
    raise NotImplementedError


def encode_refusal(refused: Refused) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    raise NotImplementedError


def check_reply_fits(request: Request, dimensions: int, max_reply_bytes: int) -> None:
    """Refuse a request whose reply could be larger than `max_reply_bytes`; `dimensions` are its model's.

    Raises InvalidRequest.
    """
    raise NotImplementedError


def dead_letter(
    lease: Lease,
    error: TokenbatchError,
    *,
    topic: str,
    group_id: str,
    attempts: int,
    first_failure_unix_s: float,
    omit_value: bool = False,
) -> OutgoingRecord:
    """The record as it was read, with the reason in its headers.

    `omit_value`: for a record too large for the dead-letter topic; its size and SHA-256 go instead.
    """
    raise NotImplementedError
