"""Aggregators and model servers come, go and crash under load: nothing is lost, and what comes twice says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from loadtest.stack.service import ModelServer
from tests.support.kafka_client import KafkaClient, open_kafka_client, query, read
from tests.support.processes import Running, StartAggregator, StartServer, synthetic
from tests.support.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = 900
STEP = {"SYNTHETIC__FIXED_S": "0.03"}
BUDGET = {"BATCHING__TOKEN_BUDGET": "50"}  # some 300 questions a second, so that the load lasts


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with synthetic(tmp_path_factory.mktemp("steady") / "log", **STEP) as server:
        yield server


@asynccontextmanager
async def under_load(running: Running) -> AsyncGenerator[KafkaClient]:
    """A desk that has sent some of its questions, and goes on sending; at the end all are answered."""
    async with open_kafka_client(running.kafka, running.topics) as desk, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(desk))
        await desk.until(lambda: len(desk.replies) > COUNT // 10)
        yield desk
        await sending
        await desk.until(lambda: len({read(reply).request_id for reply in desk.replies}) == COUNT, timeout_s=120)
        await desk.until_committed(running.group)
        await desk.linger(0.5)


async def send(desk: KafkaClient) -> None:
    """COUNT questions, faster than they are answered."""
    for start in range(0, COUNT, 50):
        await desk.produce(*(query(f"question {number}", f"q-{number}") for number in range(start, start + 50)))
        await asyncio.sleep(0.03)


def duplicates(desk: KafkaClient) -> int:
    """How many replies came a second time; every question has one reply, or the same one again."""
    answers = [read(reply) for reply in desk.replies]
    assert {answer.status.code for answer in answers} == {0}
    identities = {(answer.request_id, answer.reply_id, answer.embeddings[0].embedding) for answer in answers}
    assert len(identities) == len({reply_id for _, reply_id, _ in identities}) == COUNT
    return len(answers) - COUNT


async def test_an_aggregator_that_is_told_to_stop_drains_and_another_goes_on(
    start_aggregator: StartAggregator, steady: ModelServer
) -> None:
    first = start_aggregator(steady, settings=BUDGET)
    second = start_aggregator(steady, topics=first.topics, settings=BUDGET)
    async with under_load(first) as desk:
        assert await asyncio.to_thread(first.process.stop, 60.0) == 0
        told = [fields["event"] for fields in first.process.news()]
        assert told[-1] == "aggregator stopped"
        assert "drain timed out: unfinished records will be replayed, open calls are cancelled" not in told
        assert "partitions were revoked with records in flight" not in told
    assert duplicates(desk) == 0
    shown = metrics(second.process.metrics_address)
    assert shown.value("tokenbatch_consumer_lag") == 0
    assert shown.value("tokenbatch_consumer_rebalances_total") >= 1


async def test_a_drain_that_runs_out_of_time_leaves_the_rest_to_another(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    slow = start_server(SYNTHETIC__FIXED_S="0.5")  # one batch runs, one is staged: longer than the drain
    settings = {"BATCHING__TOKEN_BUDGET": "400"}
    first = start_aggregator(slow, settings={**settings, "LIFECYCLE__GRACE_S": "10.2"})  # 10 s are for the brokers
    async with under_load(first) as desk:
        assert await asyncio.to_thread(first.process.stop, 60.0) == 0, first.process.child.log.tail()
        told = [fields["event"] for fields in first.process.news()]
        assert "drain timed out: unfinished records will be replayed, open calls are cancelled" in told
        assert told[-1] == "aggregator stopped"
        await asyncio.to_thread(start_aggregator, slow, topics=first.topics, settings=settings)
    assert duplicates(desk) == 0


async def test_what_a_killed_aggregator_left_is_redone_under_the_same_reply_ids(
    start_aggregator: StartAggregator, steady: ModelServer
) -> None:
    settings = {**BUDGET, "KAFKA__CLIENT__SESSION_TIMEOUT_S": "6"}
    rare = {"CONSTANTS": '{"aggregator.settings.aggregator:ClientSettings.commit_interval_s": 30}'}
    first = start_aggregator(steady, settings={**settings, **rare})
    async with under_load(first) as desk:
        first.process.kill()
        answered = Counter(reply.partition for reply in desk.replies)
        assert answered
        await asyncio.to_thread(start_aggregator, steady, topics=first.topics, settings=settings)
    assert COUNT > duplicates(desk) > 0
