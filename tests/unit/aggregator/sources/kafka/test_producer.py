"""One batch at a time per partition, in order; every record has its delivery result, whatever becomes of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka import producer as kafka_producer
from aggregator.sources.kafka.aiokafka_internals import InvalidRecordError, forget_topic
from aggregator.sources.kafka.outgoing import BATCH_BYTES, DeliveryResult, OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer, new_client
from k8s.pod.errors import StartError
from tests.support.virtual_time import in_virtual_time, run

_WRITE_S = 1.0


def record(name: str, size_bytes: int = 10, *, partition: int = 0) -> OutgoingRecord:
    return OutgoingRecord("replies", partition, name.encode(), b"x" * size_bytes, ())


class Batch:
    """What a client's `create_batch` returns."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.times: list[int | None] = []
        self.bytes = 0

    def append(self, *, timestamp: int | None, key: bytes | None, value: bytes, headers: Sequence[Any]) -> None:
        del headers
        self.times.append(timestamp)
        self.keys.append("" if key is None else key.decode())
        self.bytes += len(value)

    def size(self) -> int:
        return self.bytes


class Client:
    """In place of `AIOKafkaProducer`: each write takes a second, or for ever if it `hangs`, and fails of `failures`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stopped = False
        self.client = SimpleNamespace(
            cluster=SimpleNamespace(partitions_for_topic=broker.known.get),
            force_metadata_update=self.start,
            _topics=set[str](),
        )
        broker.clients.append(self)

    async def start(self) -> None:
        if self.broker.refuses_connections:
            self.broker.refuses_connections -= 1
            raise kafka_errors.KafkaConnectionError

    async def stop(self) -> None:
        self.stopped = True

    async def partitions_for(self, topic: str) -> set[int]:
        self.client._topics.add(topic)  # noqa: SLF001
        await asyncio.sleep(0.1)
        if topic not in self.broker.known:
            raise kafka_errors.UnknownTopicOrPartitionError
        return self.broker.known[topic]

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Task[None]:
        return asyncio.create_task(self._write(batch, topic, partition))

    async def _write(self, batch: Batch, topic: str, partition: int) -> None:
        del topic, partition
        broker = self.broker
        if broker.hangs:
            broker.hangs = False
            await asyncio.sleep(10_000)
        broker.running += 1
        broker.most_running = max(broker.most_running, broker.running)
        await asyncio.sleep(_WRITE_S)
        broker.running -= 1
        if broker.failures:
            raise broker.failures.pop(0)
        if (refusal := broker.refuses(batch)) is not None:
            raise refusal
        if any(key.startswith("bad") for key in batch.keys):
            raise kafka_errors.MessageSizeTooLargeError
        broker.batches.append(batch.keys)


class Broker:
    """Where clients write; `partitions` are what an administrator is told."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.batches: list[list[str]] = []
        self.failures: list[Exception] = []
        self.running = self.most_running = self.refuses_connections = 0
        self.hangs = False
        self.refuses: Callable[[Batch], Exception | None] = lambda _: None
        self.partitions: dict[str, int] | Exception = {"replies": 3}
        self.known = {"replies": {0, 1, 2}}

    async def topics(self, settings: KafkaSettings) -> dict[str, int]:
        del settings
        if isinstance(self.partitions, Exception):
            raise self.partitions
        return self.partitions


async def abandon(client: Client) -> None:
    client.stopped = True


async def send(producer: KafkaProducer, *records: OutgoingRecord) -> list[DeliveryResult]:
    results: dict[int, DeliveryResult] = {}
    async for delivered in producer.send(records):
        results.update(delivered)
    return [results[position] for position in range(len(records))]


@pytest.fixture
def broker() -> Any:
    broker = Broker()
    with (
        patch.object(kafka_producer, "topic_partitions", broker.topics),
        patch.object(kafka_producer, "abandon_producer", abandon),
    ):
        yield broker


async def connected(broker: Broker) -> KafkaProducer:
    producer = KafkaProducer(KafkaSettings(), lambda _: Client(broker))
    await producer.start()
    return producer


@in_virtual_time
async def test_what_comes_during_a_batch_goes_in_the_next_each_with_its_result(
    broker: Broker,
) -> None:
    producer = await connected(broker)
    first = asyncio.create_task(send(producer, record("a"), record("a2")))
    await asyncio.sleep(_WRITE_S / 2)
    names = ("b", "bad", "c")
    others = [asyncio.create_task(send(producer, record(name), record(f"{name}2"))) for name in names]
    results = await asyncio.gather(first, *others)
    assert broker.batches[0] == ["a", "a2"]
    assert [name for batch in broker.batches for name in batch] == ["a", "a2", "b", "b2", "c", "c2"]
    assert broker.most_running == 1
    assert [[result is None for result in each] for each in results] == [
        *[[True, True]] * 2,
        [False, False],
        [True, True],
    ]


@in_virtual_time
async def test_a_batch_keeps_its_bound_and_its_order(broker: Broker) -> None:
    producer = await connected(broker)
    await asyncio.gather(*(send(producer, record(str(number), BATCH_BYTES // 3)) for number in range(6)))
    assert [name for batch in broker.batches for name in batch] == [str(number) for number in range(6)]
    assert max(map(len, broker.batches)) == 2


@in_virtual_time
async def test_other_partitions_do_not_wait(broker: Broker) -> None:
    producer = await connected(broker)
    await send(producer, *(record("x", partition=number) for number in range(3)))
    assert broker.most_running == 3


@pytest.mark.parametrize("cancelled_after_s", [0.5 * _WRITE_S, 1.5 * _WRITE_S])
@in_virtual_time
async def test_a_sender_that_is_cancelled_does_not_block_the_others(broker: Broker, cancelled_after_s: float) -> None:
    producer = await connected(broker)
    first, second, third = (asyncio.create_task(send(producer, record(name))) for name in "abc")
    await asyncio.sleep(cancelled_after_s)
    second.cancel()
    assert await third == [None]
    assert await first == [None]


@in_virtual_time
async def test_what_a_retry_cures_is_tried_until_it_succeeds(broker: Broker) -> None:
    broker.failures = [kafka_errors.NotEnoughReplicasError()] * 10
    assert await send(await connected(broker), record("a")) == [None]
    assert len(broker.clients) == 1


@in_virtual_time
async def test_what_no_retry_cures_is_final_after_some_tries(broker: Broker) -> None:
    broker.failures = [kafka_errors.UnknownError(str(number)) for number in range(4)]
    (result,) = await send(await connected(broker), record("a"))
    assert str(result) == str(kafka_errors.UnknownError("3"))


@pytest.mark.parametrize("hangs", [True, False], ids=["it hangs", "its sender has ended"])
@in_virtual_time
async def test_a_client_that_no_longer_writes_is_replaced_and_disconnected(broker: Broker, *, hangs: bool) -> None:
    producer = await connected(broker)
    broker.hangs, broker.refuses_connections = hangs, 3
    if not hangs:
        broker.failures = [kafka_errors.KafkaError("Unexpected error during batch delivery")]
    results = await asyncio.gather(*(send(producer, record(name, partition=at)) for at, name in enumerate("abc")))
    assert results == [[None]] * 3
    await asyncio.sleep(60)
    assert [client.stopped for client in broker.clients] == [True] * (len(broker.clients) - 1) + [False]
    await producer.close(1.0)
    assert all(client.stopped for client in broker.clients)


@in_virtual_time
async def test_a_credential_file_caught_in_rotation_is_read_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = [True]

    def client(_: KafkaSettings) -> Client:
        if unreadable:
            unreadable.pop()
            raise StartError("kafka: SCRAM-SHA-512 needs kafka.sasl.username and a password")
        return Client(broker)

    producer = KafkaProducer(KafkaSettings(), client)
    with pytest.raises(StartError, match="needs"):
        await producer.start()
    await producer.start()
    broker.failures = [kafka_errors.KafkaError("Unexpected error during batch delivery")]
    unreadable += [True] * 3
    assert await send(producer, record("a")) == [None]
    assert not unreadable
    said: list[str] = [
        vars(each)["error"] for each in caplog.records if each.message == "could not connect the producer"
    ]
    assert len(said) == 3
    assert all("needs kafka.sasl.username and a password" in error for error in said)
    await producer.close(1.0)


@in_virtual_time
async def test_a_missing_partition_is_final_only_once_a_broker_has_said_so(broker: Broker) -> None:
    producer = await connected(broker)
    broker.partitions = kafka_errors.KafkaConnectionError()
    broker.failures = [kafka_errors.UnknownTopicOrPartitionError()] * 3
    assert await send(producer, record("a")) == [None]
    broker.partitions = {"replies": 1}
    broker.failures = [kafka_errors.UnknownTopicOrPartitionError()] * 20
    (result,) = await send(producer, record("b", partition=2))
    assert isinstance(result, kafka_errors.UnknownTopicOrPartitionError)


@in_virtual_time
async def test_topics_that_senders_name_and_nobody_made_are_forgotten(broker: Broker) -> None:
    producer = await connected(broker)
    (client,) = broker.clients

    async def reply_to(topic: str) -> DeliveryResult:
        (result,) = await send(producer, OutgoingRecord(topic, None, b"k", b"x", ()))
        return result

    assert isinstance(await reply_to("late"), kafka_errors.UnknownTopicOrPartitionError)
    broker.known["late"] = broker.known["replies"]
    for number in range(3000):
        assert isinstance(await reply_to(f"none-{number}"), kafka_errors.UnknownTopicOrPartitionError)
    asked: set[str] = client.client._topics  # noqa: SLF001
    assert len(asked) < 1100
    assert {"late", "none-2999"} < asked
    assert "none-0" not in asked
    assert len(producer._writer._refused) < 1100  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert await reply_to("late") is None


def test_the_name_of_a_topic_that_was_asked_for_can_be_forgotten() -> None:
    async def forgotten() -> bool:
        producer = new_client(KafkaSettings())
        producer.client.add_topic("none")
        assert "none" in producer.client._topics  # noqa: SLF001
        forget_topic(producer, "none")
        await producer.stop()
        return "none" not in producer.client._topics  # noqa: SLF001

    assert run(forgotten())


@in_virtual_time
async def test_what_waits_when_the_producer_is_closed_is_told_so(broker: Broker) -> None:
    producer = await connected(broker)
    broker.hangs = True
    sending = asyncio.create_task(send(producer, record("a")))
    await asyncio.sleep(_WRITE_S)
    await producer.close(2.0)
    with pytest.raises(kafka_errors.ProducerClosed):
        await sending
    with pytest.raises(kafka_errors.ProducerClosed):
        await send(producer, record("b"))


def test_a_client_keeps_its_backoff_between_two_requests_for_metadata() -> None:
    async def ask(times: int) -> float:
        producer, loop = new_client(KafkaSettings()), asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(times):
            assert not await producer.client._metadata_update(producer.client.cluster, ())  # noqa: SLF001 - no broker
        took_s = loop.time() - began_s
        await producer.stop()
        return took_s

    assert run(ask(1)) == 0
    assert run(ask(6)) == pytest.approx(1.0)


def of_requests(*times_ms: int) -> list[OutgoingRecord]:
    return [OutgoingRecord("replies", 0, b"k", b"x", (), at_ms, b"made") for at_ms in times_ms]


@in_virtual_time
async def test_replies_carry_their_requests_time_where_clocks_are_refused(broker: Broker) -> None:
    broker.refuses = lambda batch: kafka_errors.InvalidTimestampError() if None in batch.times else None
    untimely: list[str] = []
    producer = KafkaProducer(KafkaSettings(), lambda _: Client(broker), on_untimely=untimely.append)
    await producer.start()
    assert await send(producer, *of_requests(1000, 2000)) == [None, None]
    assert await send(producer, *of_requests(3000)) == [None]
    assert (untimely, producer.trouble) == (["replies"], None)
    broker.refuses = lambda batch: None if batch.times == [None] else kafka_errors.InvalidTimestampError()
    await asyncio.sleep(30.0)
    assert await send(producer, *of_requests(4000)) == [None]
    assert untimely == ["replies"]


@in_virtual_time
async def test_what_is_refused_for_either_time_waits_and_is_no_dead_letter(broker: Broker) -> None:
    broker.refuses = lambda _: kafka_errors.InvalidTimestampError()
    producer = await connected(broker)
    sending = asyncio.create_task(send(producer, *of_requests(1000, 2000)))
    await asyncio.sleep(3600.0)
    assert not sending.done()
    assert "machine's clock" in (producer.trouble or "")
    broker.refuses = lambda _: None
    assert await sending == [None, None]
    assert producer.trouble is None


@in_virtual_time
async def test_records_without_a_key_get_one_where_a_topic_requires_it(broker: Broker) -> None:
    broker.refuses = lambda batch: InvalidRecordError() if "" in batch.keys else None
    producer = await connected(broker)
    records = [OutgoingRecord("replies", 0, key, b"x", (), identity=b"made") for key in (None, b"k", None)]
    assert await send(producer, *records) == [None] * 3
    assert broker.batches == [["made", "k", "made"]]


@in_virtual_time
async def test_a_record_that_a_topic_does_not_take_is_refused_at_once(broker: Broker) -> None:
    """Each half of the batch is one write; nothing waits in between."""
    broker.refuses = lambda batch: InvalidRecordError() if "odd" in batch.keys else None
    producer = await connected(broker)
    began_s = asyncio.get_running_loop().time()
    results = await send(producer, record("a"), record("odd"), record("b"), record("c"))
    assert [type(result) for result in results] == [type(None), InvalidRecordError, type(None), type(None)]
    assert asyncio.get_running_loop().time() - began_s == 5 * _WRITE_S


def test_errors_of_newer_brokers_are_retried_as_kafka_says() -> None:
    assert kafka_errors.for_code(87) is InvalidRecordError
    assert not InvalidRecordError.retriable
    for number in (74, 75, 78, 88, 89, 100, 103):
        error = kafka_errors.for_code(number)()
        assert (error.errno, error.retriable) == (number, True)
