"""Brokers go away and come back: nothing is lost, nothing hangs, and what can go on goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import errors as kafka_errors

from aggregator.observability.metrics import Metrics
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.producer import KafkaProducer
from k8s.pod.metrics_buffer import MetricsBuffer
from loadtest.stack.kafka import KafkaBroker
from tests.support.kafka_clusters import RealCluster, complete, produce, reading, records_of, send_all

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("breaks", [KafkaBroker.kill, KafkaBroker.pause], ids=["away", "frozen"])
async def test_stopping_does_not_wait_for_a_broker_that_says_nothing(
    fragile: RealCluster, own_broker: KafkaBroker, breaks: Callable[[KafkaBroker], None]
) -> None:
    topic = await fragile.create_topic()
    await produce(fragile, records_of(topic, 5))
    settings = fragile.settings(topic)
    consumer, producer = KafkaConsumer(settings, lambda _: None, Metrics(MetricsBuffer())), KafkaProducer(settings)
    await producer.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run())
        in_flight_records = await consumer.fetch()
        await asyncio.to_thread(breaks, own_broker)
        try:
            sending = asyncio.create_task(send_all(producer, records_of(topic, 3)))
            await asyncio.sleep(0.5)
            complete(in_flight_records)
            async with asyncio.timeout(60):  # it says nothing for longer
                await producer.close(1)
                with pytest.raises(kafka_errors.ProducerClosed):
                    await sending
                await consumer.close(4)
        finally:
            if own_broker.exit_code is None:
                own_broker.resume()


async def test_intake_and_output_start_before_their_broker(fragile: RealCluster, own_broker: KafkaBroker) -> None:
    topic = await fragile.create_topic()
    await produce(fragile, records_of(topic, 5))
    await asyncio.to_thread(own_broker.stop)
    producer = KafkaProducer(fragile.settings())
    starting = asyncio.create_task(producer.start())
    async with reading(fragile, fragile.settings(topic)) as intake:
        await intake.nothing(2.0)
        assert not intake.consumer.healthy
        assert not starting.done()
        await asyncio.to_thread(own_broker.start)
        assert [in_flight.offset for in_flight in await intake.take(5)] == [0, 1, 2, 3, 4]
        await asyncio.wait_for(starting, 60)
    await producer.close(1)
