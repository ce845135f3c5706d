"""What a group says that it has committed is believed only when it said so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError
from aiokafka.protocol.commit import OffsetFetchResponse_v1, OffsetFetchResponse_v3

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer import group as kafka_group
from aggregator.sources.kafka.consumer.group import GroupMember

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
Committed = Callable[["_Coordinator"], dict[TopicPartition, int]]
_LOADS, _MOVED, _UNSTABLE = 14, 16, 88


class _Coordinator:
    """Answers every request with `response`."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.dead = False

    async def _send_req(self, _: object) -> Any:
        return self.response

    def coordinator_dead(self) -> None:
        self.dead = True


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    """What a member finds committed, whose coordinator is that one."""

    async def ask(coordinator: _Coordinator) -> dict[TopicPartition, int]:
        async def on_revoked() -> None: ...

        monkeypatch.setattr(kafka_group, "AIOKafkaConsumer", lambda **_: SimpleNamespace(_coordinator=coordinator))
        return dict(await GroupMember(KafkaSettings(), on_revoked, lambda *_: None).committed([ONE, TWO]))

    return lambda coordinator: asyncio.run(ask(coordinator))


def test_offsets_are_those_that_the_group_has(committed: Committed) -> None:
    for response in (
        OffsetFetchResponse_v3(0, [("t", [(0, 7, "", 0), (1, -1, "", 0)])], 0),
        OffsetFetchResponse_v1([("t", [(0, 7, "", 0), (1, -1, "", 0)])]),
    ):
        assert committed(_Coordinator(response)) == {ONE: 7}


@pytest.mark.parametrize(
    ("response", "error", "dead"),
    [
        (OffsetFetchResponse_v3(0, [], _LOADS), GroupLoadInProgressError, False),
        (OffsetFetchResponse_v3(0, [], _MOVED), NotCoordinatorForGroupError, True),
        (OffsetFetchResponse_v3(0, [("t", [(0, -1, "", _UNSTABLE), (1, -1, "", 0)])], 0), KafkaError, False),
        (OffsetFetchResponse_v3(0, [("t", [(0, 7, "", 0)])], 0), KafkaError, False),
        (OffsetFetchResponse_v3(0, [], 0), KafkaError, False),
    ],
    ids=["loads", "moved", "unstable", "one missing", "all missing"],
)
def test_an_answer_that_tells_nothing_is_an_error_and_never_no_offset(
    committed: Committed, response: Any, error: type[Exception], dead: bool
) -> None:
    coordinator = _Coordinator(response)
    with pytest.raises(error):
        committed(coordinator)
    assert coordinator.dead is dead
