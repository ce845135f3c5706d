"""What this client may do with topics and its group, as the brokers say it (KIP-430); nothing is read or written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.types import Array, Boolean, Schema, String
from typing_extensions import override

from aggregator.sources.kafka.aiokafka_internals import MetadataRequest, ask

_READ, _WRITE = 3, 4
_NAMES = {_READ: "Read", _WRITE: "Write"}
"""Bits of an answer, by Kafka's AclOperation."""
_UNKNOWN = -(2**31)
"""The answer of a broker that was not asked, or is older than 2.3."""
_TEXT = String("utf-8")


class _GroupsRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = DescribeGroupsResponse_v3
    SCHEMA = Schema(("groups", Array(_TEXT)), ("include_authorized_operations", Boolean))


class _Group(Request[_GroupsRequest]):  # type: ignore[misc]
    API_KEY = 15

    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def build(self, request_struct_class: type[_GroupsRequest]) -> _GroupsRequest:
        return request_struct_class([self._name], True)


async def lacking(admin: AIOKafkaAdminClient, read: Collection[str], written: Collection[str], group: str) -> list[str]:
    """The rights that this client lacks on topics that are there, and on its group. Raises KafkaError."""
    operations = await _topic_operations(admin, [*read, *written])
    return [
        *_missing(operations, read, _READ),
        *_missing(operations, written, _WRITE),
        *(f"Read on group {name}" for name in _without(await _of_group(admin, group), [group], _READ)),
    ]


async def _of_group(admin: AIOKafkaAdminClient, group: str) -> Mapping[str, int]:
    """The operations on a group, as far as they are known: a new cluster has no coordinator yet."""
    try:
        coordinator = await admin.find_coordinator(group)
    except kafka_errors.GroupCoordinatorNotAvailableError:
        return {}
    except kafka_errors.GroupAuthorizationFailedError:
        return {group: 0}
    (described,) = (await ask(admin, _Group(group), coordinator)).to_object()["groups"]
    return {group: described["authorized_operations"]}


def _missing(operations: Mapping[str, int], topics: Collection[str], right: int) -> Iterator[str]:
    for name in _without(operations, topics, right):
        yield f"{_NAMES[right]} on topic {name}"


def _without(operations: Mapping[str, int], names: Collection[str], right: int) -> list[str]:
    """The names whose operations lack a right, as far as the broker tells."""
    return [name for name in names if (found := operations.get(name, _UNKNOWN)) != _UNKNOWN and not found >> right & 1]


async def _topic_operations(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, int]:
    """What this client may do with each topic (KIP-430), as bits by AclOperation; empty from a broker before Kafka 2.8.

    Raises KafkaError.
    """
    try:
        response = await ask(admin, MetadataRequest(names, operations=True))
    except (NotImplementedError, kafka_errors.IncompatibleBrokerVersion):
        return {}
    return {topic["name"]: topic["authorized_operations"] for topic in response.to_object()["topics"]}
