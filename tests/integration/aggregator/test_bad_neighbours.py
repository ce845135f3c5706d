"""What is bad, huge, late or poisonous among what is good does harm to nothing but itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from aiokafka import ConsumerRecord

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.aggregator.letters import check_dead_letter
from tests.support.kafka_client import (
    PROTOBUF,
    Sent,
    Topics,
    committed,
    headers,
    open_kafka_client,
    query,
    read,
)
from tests.support.processes import StartAggregator, StartServer, make_topics
from tests.support.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = "word " * 300
CODES = {"OK": 0, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "OUT_OF_RANGE": 11, "INTERNAL": 13}


def expiring(request_id: str, in_s: float) -> Sent:
    """A good request that has so long."""
    message = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text="late")])
    message.expire_time.FromNanoseconds(int((time.time() + in_s) * 1e9))
    return Sent(message.SerializeToString(), key=request_id.encode())


async def test_inputs_have_their_own_outcomes_and_twins_their_own_answers(
    start_aggregator: StartAggregator, quick: ModelServer
) -> None:
    running = start_aggregator(quick)
    mixed = pb.EmbedRequest(request_id="mixed", inputs=[pb.Input(text=text) for text in ("fine", "", LONG, "fine")])
    mixed.inputs.append(pb.Input(token_ids=pb.TokenIds(ids=[101, 30522, 102])))
    records = [
        Sent(mixed.SerializeToString()),
        query(LONG, "end", truncate=pb.TRUNCATE_END),
        query(LONG, "start", truncate=pb.TRUNCATE_START),
        query("fine", "twin"),
        query("fine", "twin"),
        query("something else", "twin"),
        Sent(query("fine", "bare").value, (PROTOBUF, ("kafka_replyTopic", None), ("correlation_id", None)), b"bare"),
    ]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(*records)
        await desk.until_committed(running.group)
    answers = desk.answers()
    embeddings = answers["mixed"].embeddings
    assert [each.status.code for each in embeddings] == [0, 3, 11, 0, 3]
    assert [len(each.embedding) for each in embeddings] == [1536, 0, 0, 1536, 0]
    assert answers["mixed"].status.code == CODES["INVALID_ARGUMENT"]
    assert [answers[name].embeddings[0].token_count for name in ("end", "start")] == [256, 256]
    twins = [read(reply) for reply in desk.replies if reply.key == b"twin"]
    assert [twin.status.code for twin in twins] == [0, 0, 0]
    assert len({twin.reply_id for twin in twins}) == 3
    assert len({twin.embeddings[0].embedding for twin in twins}) == 2
    (bare,) = [reply for reply in desk.replies if reply.key == b"bare"]
    assert bare.headers[1:] == (("kafka_replyTopic", None), ("correlation_id", None))


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "too large to keep"])
async def test_a_record_of_5_mb_is_refused_and_those_behind_it_are_answered(
    start_aggregator: StartAggregator, kafka: KafkaBroker, quick: ModelServer, kept: bool
) -> None:
    topics = Topics(f"huge-{kept}.requests", f"huge-{kept}.replies")
    roomy = {"max.message.bytes": str(8 * 1024 * 1024)}
    await make_topics(kafka.bootstrap, topics.requests, configs=roomy)
    await make_topics(kafka.bootstrap, topics.dead_letters, configs=roomy if kept else {})
    running = start_aggregator(quick, topics=topics)
    huge = Sent(query("x" * 5_000_000, "huge").value, (PROTOBUF, ("correlation_id", b"c-1")), b"huge", 0)
    neighbours = [query("fine", f"good-{number}") for number in range(4)]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        written = await desk.exchange(*neighbours[:2], huge, *neighbours[2:], dead=1)
        await desk.until_committed(running.group)
    replies = {reply.key: reply for reply in desk.replies}
    assert [read(replies[b"good-%d" % number]).status.code for number in range(4)] == [0] * 4
    assert read(replies[b"huge"]).status.code == CODES["INVALID_ARGUMENT"]
    assert headers(replies[b"huge"])["correlation_id"] == b"c-1"
    check_dead_letter(
        *(desk.dead_letters[0], huge, written[2], running.group),
        code="INVALID_ARGUMENT",
        says="at most 4194304 are taken",
        omitted=not kept,
    )
    assert metrics(running.process.metrics_address).value("embed_dead_letters_total") == 1


async def test_a_flood_of_corrupt_records_holds_nothing_up_and_is_committed_in_order(
    start_aggregator: StartAggregator, kafka: KafkaBroker, quick: ModelServer
) -> None:
    topics = Topics("flood.requests", "flood.replies")
    # The broker's clock says when an outcome was written.
    dated = {"message.timestamp.type": "LogAppendTime"}
    await make_topics(kafka.bootstrap, topics.replies, topics.dead_letters, configs=dated)
    running = start_aggregator(quick, topics=topics, settings={"KAFKA__CLIENT__COMMIT_INTERVAL_S": "0.02"})
    flood = [Sent(b"\xff\xff", (), b"bad") for _ in range(3000)]
    for number in range(30):
        flood[number * 100] = query("fine", f"good-{number}")
    commits: list[tuple[float, Mapping[int, int]]] = []
    async with open_kafka_client(running.kafka, running.topics) as desk:

        async def committed_records() -> int:
            offsets = await committed(running.kafka, running.group)
            commits.append((time.time() * 1000, {number: end for (_, number), end in offsets.items()}))
            await desk.linger(0.02)
            return sum(commits[-1][1].values())

        written = await desk.produce(*flood[:1000])
        while await committed_records() <= 0:
            pass
        written += await desk.produce(*flood[1000:])
        while len(desk.dead_letters) < 2970 or len(desk.replies) < 3000:
            await committed_records()
        await desk.until_committed(running.group)

    good = {reply.key: reply for reply in desk.replies if reply.key != b"bad"}
    assert [read(good[b"good-%d" % number]).status.code for number in range(30)] == [0] * 30
    assert max(reply.timestamp for reply in good.values()) - written[0].timestamp_ms < 30_000
    completed_ms = {
        (int(told["dlt-original-partition"]), int(told["dlt-original-offset"])): record.timestamp
        for record in desk.dead_letters
        for told in (headers(record),)
    }
    completed_ms |= {
        (place.partition, place.offset): good[sent.key].timestamp
        for sent, place in zip(flood, written, strict=True)
        if sent.key != b"bad"
    }
    assert len(completed_ms) == 3000
    for when_ms, ends in commits:
        for partition, end in ends.items():
            assert all(completed_ms[partition, offset] <= when_ms for offset in range(end))
    assert any(0 < sum(ends.values()) < 3000 for _, ends in commits)
    shown = metrics(running.process.metrics_address)
    assert shown.value("embed_requests_total", source="kafka", code="DATA_LOSS") == 2970
    assert shown.value("embed_dead_letters_total", code="DATA_LOSS") == 2970


async def test_what_expires_in_the_queue_is_told_at_once_and_never_computed(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    slow = start_server(SYNTHETIC__FIXED_S="3")
    running = start_aggregator(slow)
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.produce(query("running", "running", priority=pb.PRIORITY_INTERACTIVE))
        await desk.until(lambda: metrics(running.process.metrics_address).value("embed_replica_inflight_tokens") > 0)
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
    assert shown.value("embed_expired_total") == 10
    assert shown.value("embed_requests_total", code="DEADLINE_EXCEEDED") == 10
    assert not desk.dead_letters
    assert metrics(slow.metrics_address).value("embed_engine_queries_total") == 12  # a probe, one that ran, ten more


async def test_poison_is_cornered_and_on_replay_refused_while_its_batch_is_answered(
    start_aggregator: StartAggregator, start_server: StartServer
) -> None:
    server = start_server(SYNTHETIC__FIXED_S="0.2", SYNTHETIC__POISON_TOKEN_ID="9947")
    running = start_aggregator(server)
    innocents = [query(f"innocent {number}", f"innocent-{number}") for number in range(30)]
    poison = query("poison", "poison")

    def failed_steps() -> float:
        return metrics(server.metrics_address).value("embed_engine_failed_steps_total")

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
        assert 3 <= cornered <= 5 + 2  # log2(31) + 2
        again = (await desk.exchange(poison, *innocents, dead=1))[0]
        assert "not tried again" in desk.answers()["poison"].status.message
        assert failed_steps() == cornered
        await desk.until_committed(running.group)
    attempts = int(headers(desk.dead_letters[0])["dlt-attempts"])
    assert 3 <= attempts <= cornered
    for record, written, says, tries in (
        (desk.dead_letters[0], first, "made the engine fail", attempts),
        (desk.dead_letters[1], again, "not tried again", 1),
    ):
        check_dead_letter(record, poison, written, running.group, code="INTERNAL", says=says, attempts=tries)
    shown = metrics(running.process.metrics_address)
    assert shown.value("embed_dead_letters_total", code="INTERNAL") == 2
    assert shown.value("embed_requests_total", source="kafka", code="INTERNAL") == 2
    assert shown.value("embed_requests_total", source="kafka", code="OK") == 91
    assert shown.value("embed_retries_total", code="INTERNAL") >= 31 + 31


def _vectors(replies: list[ConsumerRecord[bytes, bytes]]) -> Mapping[str, bytes]:
    answers = map(read, replies)
    return {answer.request_id: answer.embeddings[0].embedding for answer in answers}
