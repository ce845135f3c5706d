"""Requests through Kafka end within their time, whatever the broker does."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from tokenbatch_client import DeadlineExceeded
from tokenbatch_client.kafka import KafkaClient

from tests.support.virtual_time import in_virtual_time


class Part:
    """What a producer is made of, in a list of what was closed, in order."""

    def __init__(self, closed: list[object], name: str) -> None:
        self._closed, self._name = closed, name

    async def close(self) -> None:
        self._closed.append(self._name)


class Away:
    """A producer whose broker takes records or not, and acknowledges none."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes
        self.closed: list[object] = []
        self.client, self._sender = Part(self.closed, "client"), Part(self.closed, "sender")
        self._closed = False

    async def flush(self) -> None:
        """It waits until all is acknowledged, and so does aiokafka's stop."""
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        await self.flush()

    def create_batch(self) -> Any:
        return self

    def append(self, **_: object) -> bool:
        return True

    async def send_batch(self, *_: object, **__: object) -> asyncio.Future[None]:
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._takes:
            await acknowledged
        return acknowledged


@pytest.mark.parametrize("takes", [False, True])
@in_virtual_time
async def test_submit_ends_within_its_time_while_kafka_is_away(*, takes: bool) -> None:
    client = KafkaClient("kafka:9092")
    client._producer, client._partitions = Away(takes=takes), cycle([0])  # noqa: SLF001
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="the requests are not written: Kafka does not answer"):
        _ = [row async for row in client.submit(["a"], timeout_s=3.0)]
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(3.0)


def opened(*, takes: bool) -> tuple[KafkaClient, Away]:
    """A client inside its `async with`, and its producer."""
    client, producer = KafkaClient("kafka:9092"), Away(takes=takes)
    client._producer, client._partitions = producer, cycle([0])  # noqa: SLF001
    client._open.push_async_callback(client._stop)  # noqa: SLF001 - as its start does
    return client, producer


async def within(client: KafkaClient, work: Callable[[], Awaitable[object]]) -> None:
    """`async with` over a client that is open."""
    try:
        await work()
    except BaseException as error:
        await client.__aexit__(type(error), error, None)
        raise
    await client.__aexit__(None, None, None)


GIVEN_UP = ["sender", "client"]


@pytest.mark.parametrize("takes", [False, True])
@in_virtual_time
async def test_the_block_ends_with_its_error_while_kafka_is_away(*, takes: bool) -> None:
    client, producer = opened(takes=takes)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="Kafka does not answer"):
        await within(client, lambda: anext(client.submit(["a"], timeout_s=2.0)))
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.0)
    assert producer.closed == GIVEN_UP


@in_virtual_time
async def test_a_cancelled_task_leaves_the_block_while_kafka_is_away() -> None:
    client, producer = opened(takes=True)
    task = asyncio.create_task(within(client, lambda: anext(client.submit(["a"], timeout_s=60.0))))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert producer.closed == GIVEN_UP


@in_virtual_time
async def test_what_was_sent_and_not_flushed_is_not_given_up_in_silence() -> None:
    client, producer = opened(takes=True)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="Kafka does not answer"):
        await within(client, lambda: client.send([("1", b"a", [])]))
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(63.0)
    assert producer.closed == GIVEN_UP


@in_virtual_time
async def test_who_catches_the_error_inside_the_block_leaves_it_soon() -> None:
    client, producer = opened(takes=True)

    async def caught() -> None:
        with pytest.raises(DeadlineExceeded):
            await anext(client.submit(["a"], timeout_s=2.0))

    began_s = asyncio.get_running_loop().time()
    await within(client, caught)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.0)
    assert producer.closed == GIVEN_UP


async def _nothing(*_: object, **__: object) -> None:
    """What a client of Kafka does at its start, and when it waits for what it knows of a topic."""


async def _refused(*_: object, **__: object) -> None:
    raise KafkaConnectionError("refused")


async def _silent(*_: object, **__: object) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("answers", [_refused, _silent])
@in_virtual_time
async def test_aiokafkas_own_producer_is_stopped_while_kafka_is_away(answers: Any) -> None:
    client = KafkaClient("kafka:9092")
    producer: Any = AIOKafkaProducer(bootstrap_servers="kafka:9092", enable_idempotence=True)
    producer.client.bootstrap = producer.client._wait_on_metadata = _nothing  # noqa: SLF001
    producer.client.cluster.leader_for_partition = lambda _: 0
    producer.client.send, producer._partition = answers, lambda *_: 0  # noqa: SLF001
    producer._txn_manager.set_pid_and_epoch(1, 0)  # noqa: SLF001
    client._producer, client._partitions = producer, cycle([0])  # noqa: SLF001
    client._open.push_async_callback(client._stop)  # noqa: SLF001
    before = asyncio.all_tasks()
    await producer.start()
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="Kafka does not answer"):
        await within(client, lambda: anext(client.submit(["a"], timeout_s=2.0)))
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.1)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
