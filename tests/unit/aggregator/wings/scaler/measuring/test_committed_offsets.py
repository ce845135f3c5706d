"""What the group has committed is known or an error: a refusal does not mean that nothing is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    BrokerResponseError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v3
from typing_extensions import override

from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.wings.scaler.measuring import kafka_lag
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag, LogEnds
from k8s.pod.errors import StartError

Offsets = list[tuple[str, list[tuple[int, int, str, int]]]]
"""By topic: partition, offset, metadata, error code."""


class Consumer:
    """A topic of two partitions, of 100 records each."""

    def __init__(self, **_: object) -> None:
        self._client = SimpleNamespace(add_topic=self.start)

    async def start(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own client, of which only the wire is replaced: the coordinator answers `offsets` and `error_code`."""

    offsets: ClassVar[Offsets] = []
    error_code = 0

    @override
    async def start(self) -> None:
        pass

    @override
    async def describe_topics(self, topics: object = None) -> Any:
        partitions = [{"partition": 0}, {"partition": 1}]
        return [{"error_code": 0, "topic": "t", "partitions": partitions}]

    @override
    async def _send_request(self, request: object, node_id: int | None = None) -> Any:
        if isinstance(request, OffsetFetchRequest):
            return OffsetFetchResponse_v3(
                throttle_time_ms=0,
                topics=self.offsets,
                error_code=self.error_code,
            )
        return SimpleNamespace(error_code=0, coordinator_id=1)


def answer(monkeypatch: pytest.MonkeyPatch, offsets: Offsets, error_code: int = 0) -> None:
    monkeypatch.setattr(kafka_lag, "AIOKafkaConsumer", Consumer)
    monkeypatch.setattr(kafka_lag, "AIOKafkaAdminClient", Admin)
    monkeypatch.setattr(Admin, "offsets", offsets)
    monkeypatch.setattr(Admin, "error_code", error_code)


async def read(monkeypatch: pytest.MonkeyPatch, offsets: Offsets, error_code: int = 0) -> LogEnds:
    answer(monkeypatch, offsets, error_code)
    lag = KafkaLag(KafkaSettings(topics=(TopicSettings(name="t"),)))
    try:
        return await lag.read(0.0)
    finally:
        await lag.close()


async def test_a_partition_without_a_commit_counts_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await read(monkeypatch, [("t", [(0, 40, "", 0), (1, -1, "", 0)])])
    assert found.committed == {("t", 0): 40}
    assert found.unread({}, "t") == 60 + 100


@pytest.mark.parametrize(
    "error", [GroupLoadInProgressError, NotCoordinatorForGroupError, GroupAuthorizationFailedError]
)
async def test_a_group_that_is_refused_is_an_error(
    monkeypatch: pytest.MonkeyPatch, error: type[BrokerResponseError]
) -> None:
    with pytest.raises(KafkaError, match="t/0, t/1"):
        await read(monkeypatch, [], error.errno)


async def test_a_partition_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match="t and 1"):
        await read(monkeypatch, [("t", [(0, 40, "", 0), (1, -1, "", UnknownTopicOrPartitionError.errno)])])


async def test_a_partition_of_which_nothing_is_said_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match="t/1"):
        await read(monkeypatch, [("t", [(0, 40, "", 0)])])


async def test_a_password_caught_in_its_rotation_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, [("t", [(0, 40, "", 0), (1, 50, "", 0)])])
    secret = tmp_path / "password"
    sasl = {"mechanism": "PLAIN", "username": "app", "password_file": secret}
    settings = {"topics": [{"name": "t"}], "security_protocol": "SASL_PLAINTEXT", "sasl": sasl}
    lag = KafkaLag(KafkaSettings.model_validate(settings))
    secret.write_text("")
    with pytest.raises(StartError, match="a password"):
        await lag.read(0.0)
    secret.write_text("secret")
    await lag.read(0.0)
    await lag.close()
    secret.write_text("")
    with pytest.raises(KafkaError, match="a password"):
        await lag.read(0.0)
