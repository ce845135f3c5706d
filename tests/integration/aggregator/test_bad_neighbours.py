"""What is late or poisonous among what is good does harm to nothing but itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from aiokafka import ConsumerRecord

from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.aggregator.letters import check_dead_letter
from tests.support.kafka_client import (
    Sent,
    headers,
    open_kafka_client,
    query,
    read,
)
from tests.support.processes import StartAggregator, StartServer
from tests.support.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

CODES = {"OK": 0, "DEADLINE_EXCEEDED": 4, "INTERNAL": 13}


def expiring(request_id: str, in_s: float) -> Sent:
    message = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text="late")])
    message.expire_time.FromNanoseconds(int((time.time() + in_s) * 1e9))
    return Sent(message.SerializeToString(), key=request_id.encode())


async def test_what_expires_in_the_queue_is_told_at_once_and_never_computed(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    slow = start_server(SYNTHETIC__FIXED_S="3")
    running = start_aggregator(slow)
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.produce(query("running", "running", priority=pb.PRIORITY_INTERACTIVE))
        await desk.until(
            lambda: metrics(running.process.metrics_address).value("tokenbatch_replica_inflight_tokens") > 0
        )
        await desk.produce(
            *(expiring(f"late-{number}", 0.7) for number in range(10)),
            *(query(f"question {number}", f"good-{number}") for number in range(10)),
        )
        await desk.until(lambda: len(desk.replies) == 21)
        await desk.until_committed(running.group)
    replies = sorted(desk.replies, key=lambda reply: reply.timestamp)
    order = [read(reply).request_id for reply in replies]
    assert {name.partition("-")[0] for name in order[:10]} == {"late"}
    assert order[10] == "running"
    assert replies[10].timestamp - replies[9].timestamp > 500  # long before the batch that ran beside them ended
    codes = {name: answer.status.code for name, answer in desk.answers().items()}
    assert codes == {name: CODES["DEADLINE_EXCEEDED" if name.startswith("late") else "OK"] for name in order}
    shown = metrics(running.process.metrics_address)
    assert shown.value("tokenbatch_expired_total") == 10
    assert shown.value("tokenbatch_requests_total", code="DEADLINE_EXCEEDED") == 10
    assert not desk.dead_letters
    assert (
        metrics(slow.metrics_address).value("tokenbatch_engine_queries_total") == 12
    )  # a probe, one that ran, ten more


async def test_poison_is_cornered_its_batch_answered_and_its_replay_refused(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    server = start_server(SYNTHETIC__FIXED_S="0.2", SYNTHETIC__POISON_TOKEN_ID="9947")
    running = start_aggregator(server)
    innocents = [query(f"innocent {number}", f"innocent-{number}") for number in range(30)]
    poison = query("poison", "poison")

    def failed_steps() -> float:
        return metrics(server.metrics_address).value("tokenbatch_engine_failed_steps_total")

    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(*innocents)
        wanted = _vectors(desk.replies)
        desk.replies.clear()
        await desk.produce(query("this keeps the engine busy", "busy"))
        together = [replace(each, partition=0) for each in (*innocents[:15], poison, *innocents[15:])]
        first = (await desk.exchange(*together, answered=32, dead=1))[15]
        assert {name: vector for name, vector in _vectors(desk.replies).items() if name in wanted} == wanted
        answer = desk.answers()["poison"]
        assert (answer.status.code, answer.status.retryable) == (CODES["INTERNAL"], False)
        cornered = failed_steps()
        assert 3 + 3 <= cornered <= 5 + 2 + 3  # log2(31) + 2, and three as proof
        again = (await desk.exchange(poison, *innocents, dead=1))[0]
        assert "not tried again" in desk.answers()["poison"].status.message
        assert failed_steps() == cornered
        await desk.until_committed(running.group)
    attempts = int(headers(desk.dead_letters[0])["dlt-attempts"])
    assert 3 + 3 <= attempts <= cornered
    for record, written, says, tries in (
        (desk.dead_letters[0], first, "made the engine fail", attempts),
        (desk.dead_letters[1], again, "not tried again", 1),
    ):
        check_dead_letter(record, poison, written, running.group, code="INTERNAL", says=says, attempts=tries)
    shown = metrics(running.process.metrics_address)
    assert shown.value("tokenbatch_dead_letters_total", code="INTERNAL") == 2
    assert shown.value("tokenbatch_requests_total", source="kafka", code="INTERNAL") == 2
    assert shown.value("tokenbatch_requests_total", source="kafka", code="OK") == 91
    assert shown.value("tokenbatch_retries_total", code="INTERNAL") >= 31 + 31


def _vectors(replies: list[ConsumerRecord[bytes, bytes]]) -> Mapping[str, bytes]:
    answers = map(read, replies)
    return {answer.request_id: answer.embeddings[0].embedding for answer in answers}
