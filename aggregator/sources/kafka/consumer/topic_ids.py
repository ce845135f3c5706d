"""Fetch topics by their ids: one that was deleted and created again has its old name, but other records and a new id.

aiokafka 0.14 supports no version of Fetch or Metadata with ids; Kafka does from 3.1 on. Older brokers are asked by
name: there, a topic that is created again and filled beyond the old position is taken for the old one.
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
"""Kafka's zero UUID, and the id of topics of brokers that know none."""

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


def _array_of(name: str, *fields: tuple[str, Any]) -> tuple[str, CompactArray]:
    return name, CompactArray(*fields, _TAGS)


class _MetadataResponse(_Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = _METADATA_VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _array_of("brokers", ("node_id", Int32), ("host", _NAME), ("port", Int32), ("rack", _NAME)),
        ("cluster_id", _NAME),
        ("controller_id", Int32),
        _array_of(
            "topics",
            ("error_code", Int16),
            ("topic", _NAME),
            ("topic_id", _Uuid),
            ("is_internal", Boolean),
            _array_of(
                "partitions",
                ("error_code", Int16),
                ("partition", Int32),
                ("leader", Int32),
                ("leader_epoch", Int32),
                ("replicas", CompactArray(Int32)),
                ("isr", CompactArray(Int32)),
                ("offline_replicas", CompactArray(Int32)),
            ),
            ("authorized_operations", Int32),
        ),
        _TAGS,
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = _METADATA_VERSION
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        _array_of("topics", ("topic_id", _Uuid), ("topic", _NAME)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class TopicIdRequest(Request[MetadataRequest_v5 | _MetadataRequest]):  # type: ignore[misc]
    """Asks any broker for one topic's id."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    @override
    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _MetadataRequest:
            return _MetadataRequest([(NO_ID, self._topic, {})], False, False, {})
        return request_struct_class([self._topic], False)


def topic_id(response: Any) -> bytes:
    """The id in the response; NO_ID from a broker that knows none. Raises KafkaError if the topic does not exist."""
    for error_code, topic, found, *_ in response.topics:
        if error_code:
            raise kafka_errors.for_code(error_code)(topic)
        return found if response.API_VERSION >= _METADATA_VERSION else NO_ID
    raise kafka_errors.UnknownTopicOrPartitionError


class _FetchResponse(_Response):  # type: ignore[misc]
    API_KEY = 1
    API_VERSION = _FETCH_VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        _array_of(
            "topics",
            ("topic_id", _Uuid),
            _array_of(
                "partitions",
                ("partition", Int32),
                ("error_code", Int16),
                ("highwater_offset", Int64),
                ("last_stable_offset", Int64),
                ("log_start_offset", Int64),
                _array_of("aborted_transactions", ("producer_id", Int64), ("first_offset", Int64)),
                ("preferred_read_replica", Int32),
                ("message_set", CompactBytes),
            ),
        ),
        _TAGS,
    )


class _FetchRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = _FETCH_VERSION
    RESPONSE_TYPE = _FetchResponse
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        _array_of(
            "topics",
            ("topic_id", _Uuid),
            _array_of(
                "partitions",
                ("partition", Int32),
                ("current_leader_epoch", Int32),
                ("fetch_offset", Int64),
                ("last_fetched_epoch", Int32),
                ("log_start_offset", Int64),
                ("max_bytes", Int32),
            ),
        ),
        _array_of("forgotten_topics_data", ("topic_id", _Uuid), ("partitions", CompactArray(Int32))),
        ("rack_id", _NAME),
        _TAGS,
    )


_Partitions = Sequence[tuple[int, int, int]]
"""Of a fetch: number, offset, and most bytes of each."""


class _FetchByIdRequest(Request[FetchRequestStruct | _FetchRequest]):  # type: ignore[misc]
    """One of aiokafka's fetches, by topic ids if the broker supports that."""

    API_KEY = 1

    def __init__(self, by_name: FetchRequest, topics: Sequence[tuple[bytes, _Partitions]]) -> None:
        self._by_name = by_name
        self._topics = topics

    @override
    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is not _FetchRequest:
            return self._by_name.build(request_struct_class)
        topics: list[tuple[Any, ...]] = [
            (wanted_id, [(partition, -1, offset, -1, -1, most_bytes, {}) for partition, offset, most_bytes in each], {})
            for wanted_id, each in self._topics
        ]
        *head, _, forgotten, rack_id = _fields_of(self._by_name)
        return _FetchRequest(*head, topics, forgotten, rack_id, {})


def _fields_of(request: FetchRequest) -> Sequence[Any]:
    """The fields of a fetch in its version 11, in the order of its schema."""
    built: Any = request.build(FetchRequest_v11)
    return [getattr(built, name) for name in built.SCHEMA.names]


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A fetch response as aiokafka reads it, with topic names."""

    topics: Sequence[tuple[str, Sequence[tuple[Any, ...]]]]
    API_VERSION: int = _FETCH_VERSION


class FetchesById:
    """Sends a client's fetches by topic ids, and leaves out partitions without one.

    aiokafka would fetch a partition by its name as soon as it is assigned, before its topic's id is known.
    """

    def __init__(self, client: Any) -> None:
        self._send = client.send
        self._ids: dict[tuple[str, int], bytes] = {}
        self._unknown: set[tuple[str, int]] = set()
        client.send = self.send

    def use(self, tp: TopicPartition, wanted_id: bytes) -> None:
        """Fetch this partition of the topic with this id from now on; NO_ID: by its name."""
        self._ids[tp] = wanted_id
        self._unknown.discard(tp)

    def id_of(self, tp: TopicPartition) -> bytes:
        """The id by which it is fetched; NO_ID if there is none."""
        return self._ids.get(tp, NO_ID)

    def is_unknown(self, tp: TopicPartition) -> bool:
        """Whether its leader knows no topic with that id; to aiokafka the offset is then out of range."""
        return tp in self._unknown

    def clear(self) -> None:
        """The partitions were revoked."""
        self._ids.clear()
        self._unknown.clear()

    async def send(self, node_id: int, request: Any, **options: Any) -> Any:
        """In place of the client's `send`."""
        if not isinstance(request, FetchRequest):
            return await self._send(node_id, request, **options)
        partitions: dict[tuple[str, bytes], list[tuple[int, int, int]]] = {}
        for topic, asked in request.topics:
            for each in asked:
                wanted_id = self._ids.get((topic, each[0]))
                if wanted_id is not None:
                    partitions.setdefault((topic, wanted_id), []).append(each)
        if not partitions:
            await asyncio.sleep(_WAIT_S)
            return _Fetched(())
        _, max_wait_ms, min_bytes, max_bytes, isolation, *_, rack_id = _fields_of(request)
        by_name = [(topic, each) for (topic, _), each in partitions.items()]
        request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation, by_name, rack_id)
        names = {wanted_id: topic for topic, wanted_id in partitions}
        if NO_ID in names:
            return await self._send(node_id, request, **options)
        by_id = [(wanted_id, each) for (_, wanted_id), each in partitions.items()]
        response = await self._send(node_id, _FetchByIdRequest(request, by_id), **options)
        if response.API_VERSION < _FETCH_VERSION:
            return response
        return _Fetched([(names[found], self._read(names[found], found, each)) for found, each, _ in response.topics])

    def _read(self, topic: str, found_id: bytes, partitions: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The partitions of one topic, without those that are fetched by another id meanwhile."""
        read: list[tuple[Any, ...]] = []
        for partition, error_code, highwater, stable, start, aborted, replica, records, _ in partitions:
            if self._ids.get((topic, partition)) != found_id:
                continue
            code = error_code
            if error_code in _REFUSED:
                self._unknown.add((topic, partition))
                code = _OUT_OF_RANGE
            transactions = [(producer_id, first) for producer_id, first, _ in aborted or ()]
            read.append((partition, code, highwater, stable, start, transactions, replica, records))
        return read
