"""Bad input gets the answer or the dead letter that the contract promises it, is counted, and harms no neighbour."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from aggregator.errors import Code
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.aggregator.letters import check_dead_letter
from tests.support.kafka_client import (
    JSON,
    PROTOBUF,
    TEXT,
    Sent,
    Written,
    headers,
    make_topics,
    open_kafka_client,
    query,
    read,
)
from tests.support.processes import Running, aggregators
from tests.support.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

Header = tuple[str, bytes]

LONG = "word " * 300
TEXT_OF_A_QUERY = "the text of a query"
PAST = "2001-01-01T00:00:00Z"
NARROW = "bad-input-narrow"
"""A topic that holds no reply with a vector."""


@dataclass(frozen=True, slots=True)
class Case:
    """A bad record, the code it gets, some of the words, and whether it is answered, dead-lettered, or both.

    `unwritten`: why its reply could not be written.
    """

    bad: Sent
    code: str
    says: str
    replied: bool = True
    dead: bool = False
    unwritten: str | None = None


def raw(value: bytes | None, *further: Header, content: Header = PROTOBUF) -> Sent:
    return Sent(value, (content, *further), b"bad")


def fine(*further: Header) -> Sent:
    return raw(query("fine", "bad").value, *further)


def asking(**fields: Any) -> Sent:
    return raw(query("fine", "bad", **fields).value)


def inputs(*given: pb.Input, **fields: Any) -> Sent:
    return raw(pb.EmbedRequest(request_id="bad", inputs=given, **fields).SerializeToString())


def as_json(**document: Any) -> Sent:
    return raw(json.dumps({"requestId": "bad", **document}).encode(), content=JSON)


def expiring(expire_s: float) -> Any:
    message = pb.EmbedRequest(request_id="bad", inputs=[pb.Input(text="fine")])
    message.expire_time.FromNanoseconds(int((time.time() + expire_s) * 1e9))
    return raw(message.SerializeToString())


def unreadable(bad: Sent, says: str, code: str = "DATA_LOSS") -> Case:
    """Answered, and kept as a dead letter too."""
    return Case(bad, code, says, dead=True)


def refused(bad: Sent, says: str, code: str = "INVALID_ARGUMENT") -> Case:
    """Answered."""
    return Case(bad, code, says)


def unroutable(bad: Sent, says: str, code: str = "INVALID_ARGUMENT") -> Case:
    """Nobody can be answered: a dead letter."""
    return Case(bad, code, says, replied=False, dead=True)


def unwritable(topic: str, reason: str, *further: Header) -> Case:
    """Its reply cannot be written: a dead letter."""
    says = f"could not be written to {topic}: "
    return Case(fine(*further), "INTERNAL", says, replied=False, dead=True, unwritten=reason)


CASES = {
    "protobuf that is none": unreadable(raw(b"\xff\xff\xff"), "not an EmbedRequest in protobuf"),
    "JSON that is none": unreadable(raw(b'{"inputs": [', content=JSON), "not JSON"),
    "JSON with a text for an input": unreadable(
        as_json(inputs=[{"text": "fine"}, TEXT_OF_A_QUERY]), "inputs[1]", "INVALID_ARGUMENT"
    ),
    "unknown content type": unreadable(
        raw(b"<a/>", content=("content-type", b"text/xml")), "use application/x-protobuf"
    ),
    "malformed expiry": refused(fine(("ce_expirytime", b"tomorrow")), "RFC 3339"),
    "foreign token id": refused(inputs(pb.Input(token_ids=pb.TokenIds(ids=[30522]))), "vocabulary"),
    "too many empty inputs": unreadable(inputs(*[pb.Input()] * 400_000), "at most 2048 are taken", "INVALID_ARGUMENT"),
    "too long": refused(inputs(pb.Input(text=LONG)), "302 tokens", "OUT_OF_RANGE"),
    "unknown model": refused(asking(model="nobody"), "'nobody' is not configured", "NOT_FOUND"),
    "expired by its header": refused(
        fine(("ce_expirytime", PAST.encode())), "before the request arrived", "DEADLINE_EXCEEDED"
    ),
    "reply topic not allowed": unroutable(
        fine(("kafka_replyTopic", b"somebody.else")), "somebody.else are not permitted", "PERMISSION_DENIED"
    ),
    "replies to the requests": unroutable(
        fine(("reply_to", b"bad-input-0.requests")), "not permitted", "PERMISSION_DENIED"
    ),
    "reply partition of 3 bytes": unroutable(fine(("kafka_replyPartition", b"\0\0\1")), "4 bytes, big endian"),
    "reply partition that is not there": unwritable(
        "bad-input-0.replies", "not_there", ("kafka_replyPartition", b"\0\0\0\x63")
    ),
    "reply topic that is not there": unwritable("gone.missing", "not_there", ("kafka_replyTopic", b"gone.missing")),
    "reply too large for its topic": unwritable(NARROW, "too_large", ("kafka_replyTopic", NARROW.encode())),
}


@pytest.fixture(scope="module")
def running(kafka: KafkaBroker, quick: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One aggregator for all of this file."""
    asyncio.run(make_topics(kafka.bootstrap, NARROW, configs={"max.message.bytes": "1000"}))
    with aggregators(kafka, tmp_path_factory.mktemp("bad-input"), "bad-input") as start:
        yield start(quick, settings={"KAFKA__ALLOWED_REPLY_TOPICS": '["*.missing", "bad-input-*"]'})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_bad_input_is_told_what_is_wrong_and_harms_no_neighbour(running: Running, case: Case) -> None:
    before = metrics(running.process.metrics_address)
    neighbours = [query("a good question", f"good-{number}") for number in range(4)]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        written = await desk.exchange(
            *neighbours[:2], case.bad, *neighbours[2:], answered=4 + case.replied, dead=int(case.dead)
        )
        await desk.until_committed(running.group)
    after = metrics(running.process.metrics_address)

    replies = {reply.key: reply for reply in desk.replies}
    for number in range(4):
        check_good(replies.pop(b"good-%d" % number))
    if case.replied:
        check_refusal(replies.pop(b"bad"), case, written[2])
    assert not replies
    assert len(desk.dead_letters) == case.dead
    for record in desk.dead_letters:
        check_dead_letter(record, case.bad, written[2], running.group, code=case.code, says=case.says)
        assert TEXT_OF_A_QUERY.encode() not in headers(record)["dlt-error-message"]

    def rise(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert rise("tokenbatch_requests_total", source="kafka", code=case.code) == 1
    assert rise("tokenbatch_requests_total", source="kafka", code="OK") == 4
    assert rise("tokenbatch_requests_total") == 5
    assert rise("tokenbatch_dead_letters_total", code=case.code) == case.dead
    assert rise("tokenbatch_dead_letters_total") == case.dead
    assert rise("tokenbatch_replies_unwritten_total") == (case.unwritten is not None)
    if case.unwritten is not None:
        assert rise("tokenbatch_replies_unwritten_total", reason=case.unwritten) == 1
    assert rise("tokenbatch_expired_total") == (case.code == "DEADLINE_EXCEEDED")


def check_good(reply: ConsumerRecord[bytes, bytes]) -> None:
    """A vector, as if there were no other request."""
    answer = read(reply)
    assert (answer.status.code, len(answer.embeddings[0].embedding)) == (0, 4 * 384)


def check_refusal(reply: ConsumerRecord[bytes, bytes], case: Case, written: Written) -> None:
    """The reason, in the request's format where that is known."""
    asked = dict(case.bad.headers)["content-type"]
    assert headers(reply)["content-type"] == (JSON[1] if asked in {JSON[1], TEXT[1]} else PROTOBUF[1])
    answer = read(reply)
    assert Code(answer.status.code).name == case.code
    assert case.says in answer.status.message
    assert TEXT_OF_A_QUERY not in answer.status.message
    assert not answer.status.retryable
    assert len(bytes.fromhex(answer.reply_id)) == 16
    place = f"{written.topic}-{written.partition}-{written.offset}"
    assert answer.request_id == ("bad" if b"bad" in (case.bad.value or b"") and not case.dead else place)
