"""Fetch topics by their ids: one that was deleted and made again has its old name, but other records and a new id.

aiokafka 0.14 speaks no version of Fetch or Metadata that has ids; Kafka does from 3.1 on. Older brokers are asked by
name, and there a topic that is made again and filled beyond the old position is taken for the old one.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchRequestStruct
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from typing_extensions import override

NO_ID = bytes(16)
"""What brokers that know no ids have for one, and Kafka's own stand-in."""

_METADATA_VERSION = 12
_FETCH_VERSION = 13
_OUT_OF_RANGE = 1
_REFUSED = frozenset({100, 103})
"""UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID"""
_WAIT_S = 0.1


def id_text(topic_id: bytes) -> str:
    """A topic's id as Kafka's tools print it; empty where there is none."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode() if topic_id != NO_ID else ""


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no types
    @classmethod
    @override
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    @override
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(len(NO_ID))


_NAME = CompactString("utf-8")
_Response: Any = Response  # it says of its version and key that they are properties
_TAGS = ("tags", TaggedFields)


class _MetadataResponse(_Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = _METADATA_VERSION
    _PARTITIONS = CompactArray(
        ("error_code", Int16),
        ("partition", Int32),
        ("leader", Int32),
        ("leader_epoch", Int32),
        ("replicas", CompactArray(Int32)),
        ("isr", CompactArray(Int32)),
        ("offline_replicas", CompactArray(Int32)),
        _TAGS,
    )
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _NAME), ("port", Int32), ("rack", _NAME), _TAGS)),
        ("cluster_id", _NAME),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _NAME),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                ("partitions", _PARTITIONS),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = _METADATA_VERSION
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _NAME), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class TopicIdRequest(Request[MetadataRequest_v5 | _MetadataRequest]):  # type: ignore[misc]
    """The question for one topic's id; any broker answers it."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    @override
    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _MetadataRequest:
            return _MetadataRequest([(NO_ID, self._topic, {})], False, False, {})
        return request_struct_class([self._topic], False)


def topic_id(response: Any) -> bytes:
    """The id in its answer; NO_ID from a broker that knows none. Raises KafkaError where the topic is not there."""
    for error_code, topic, given, *_ in response.topics:
        if error_code:
            raise kafka_errors.for_code(error_code)(topic)
        return given if response.API_VERSION >= _METADATA_VERSION else NO_ID
    raise kafka_errors.UnknownTopicOrPartitionError


class _FetchResponse(_Response):  # type: ignore[misc]
    API_KEY = 1
    API_VERSION = _FETCH_VERSION
    _PARTITIONS = CompactArray(
        ("partition", Int32),
        ("error_code", Int16),
        ("highwater_offset", Int64),
        ("last_stable_offset", Int64),
        ("log_start_offset", Int64),
        ("aborted_transactions", CompactArray(("producer_id", Int64), ("first_offset", Int64), _TAGS)),
        ("preferred_read_replica", Int32),
        ("message_set", CompactBytes),
        _TAGS,
    )
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        ("topics", CompactArray(("topic_id", _Uuid), ("partitions", _PARTITIONS), _TAGS)),
        _TAGS,
    )


class _FetchRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = _FETCH_VERSION
    RESPONSE_TYPE = _FetchResponse
    _PARTITIONS = CompactArray(
        ("partition", Int32),
        ("current_leader_epoch", Int32),
        ("fetch_offset", Int64),
        ("last_fetched_epoch", Int32),
        ("log_start_offset", Int64),
        ("max_bytes", Int32),
        _TAGS,
    )
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        ("topics", CompactArray(("topic_id", _Uuid), ("partitions", _PARTITIONS), _TAGS)),
        (
            "forgotten_topics_data",
            CompactArray(("topic_id", _Uuid), ("partitions", CompactArray(Int32)), _TAGS),
        ),
        ("rack_id", _NAME),
        _TAGS,
    )


class _FetchByIdRequest(Request[FetchRequestStruct | _FetchRequest]):  # type: ignore[misc]
    """One of aiokafka's fetches, by ids where the broker knows them."""

    API_KEY = 1

    def __init__(self, asked: FetchRequest, topics: Sequence[tuple[bytes, Sequence[tuple[int, int, int]]]]) -> None:
        self._asked = asked
        self._topics = topics

    @override
    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is not _FetchRequest:
            return self._asked.build(request_struct_class)
        told: Any = self._asked.build(FetchRequest_v11)
        topics: list[tuple[Any, ...]] = [
            (given, [(partition, -1, offset, -1, -1, most, {}) for partition, offset, most in partitions], {})
            for given, partitions in self._topics
        ]
        return _FetchRequest(
            told.replica_id,
            told.max_wait_time,
            told.min_bytes,
            told.max_bytes,
            told.isolation_level,
            told.session_id,
            told.session_epoch,
            topics,
            [],
            told.rack_id,
            {},
        )


@dataclass(frozen=True, slots=True)
class _Fetched:
    """An answer as aiokafka reads it, which has names."""

    topics: Sequence[tuple[str, Sequence[tuple[Any, ...]]]]
    API_VERSION: int = _FETCH_VERSION


class FetchesById:
    """Sends a client's fetches, each partition by the id that was told for it; one without is left out.

    aiokafka would begin with a partition as soon as it is assigned, by its name, before anybody has looked.
    """

    def __init__(self, client: Any) -> None:
        self._send = client.send
        self._ids: dict[tuple[str, int], bytes] = {}
        self._refused: set[tuple[str, int]] = set()
        client.send = self.send

    def tell(self, tp: TopicPartition, given: bytes) -> None:
        """From now on this partition is one of the topic with this id; NO_ID: it goes by its name."""
        self._ids[tp] = given
        self._refused.discard(tp)

    def told(self, tp: TopicPartition) -> bytes:
        """The id that was told for it; NO_ID if none was."""
        return self._ids.get(tp, NO_ID)

    def refused(self, tp: TopicPartition) -> bool:
        """Whether its leader knows no topic of that id; aiokafka is told that the position is out of range."""
        return tp in self._refused

    def forget(self) -> None:
        """The partitions were given back."""
        self._ids.clear()
        self._refused.clear()

    async def send(self, node_id: int, request: Any, **options: Any) -> Any:
        """What `send` of the client does."""
        if not isinstance(request, FetchRequest):
            return await self._send(node_id, request, **options)
        ids = self._ids
        by_id: dict[tuple[str, bytes], list[tuple[int, int, int]]] = {}
        for topic, partitions in request.topics:
            for each in partitions:
                given = ids.get((topic, each[0]))
                if given is not None:
                    by_id.setdefault((topic, given), []).append(each)
        if not by_id:
            await asyncio.sleep(_WAIT_S)
            return _Fetched(())
        names = {given: topic for topic, given in by_id}
        told: Any = request.build(FetchRequest_v11)
        by_name = [(topic, partitions) for (topic, _), partitions in by_id.items()]
        asked = FetchRequest(
            told.max_wait_time, told.min_bytes, told.max_bytes, told.isolation_level, by_name, told.rack_id
        )
        if NO_ID in names:
            return await self._send(node_id, asked, **options)
        topics = [(given, partitions) for (_, given), partitions in by_id.items()]
        response = await self._send(node_id, _FetchByIdRequest(asked, topics), **options)
        if response.API_VERSION < _FETCH_VERSION:
            return response
        return _Fetched([(names[given], self._read(names[given], given, found)) for given, found, _ in response.topics])

    def _read(self, topic: str, given: bytes, found: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The partitions of one topic, without those that have got another id since they were asked for."""
        read: list[tuple[Any, ...]] = []
        for partition, error_code, highwater, stable, start, aborted, replica, records, _ in found:
            if self._ids.get((topic, partition)) != given:
                continue
            code = error_code
            if error_code in _REFUSED:
                self._refused.add((topic, partition))
                code = _OUT_OF_RANGE
            transactions = [(producer_id, first) for producer_id, first, _ in aborted or ()]
            read.append((partition, code, highwater, stable, start, transactions, replica, records))
        return read
