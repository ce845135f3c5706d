"""Large and heavy records: read like any other, and no small one waits for them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from aggregator.errors import Code
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.kafka_client import (
    JSON,
    PROTOBUF,
    KafkaClient,
    Sent,
    Topics,
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

LONGEST_WAIT_S = 5.0
"""Beyond ten times what the same queries wait without heavy ones, which shows what else the machine does. Before heavy
records were read apart it was ten seconds and more."""


def full_of_inputs(number: int) -> Sent:
    document = {"requestId": f"heavy-{number}", "inputs": [{"text": "a"}] * 65_000}
    return Sent(json.dumps(document, separators=(",", ":")).encode(), (JSON,), b"heavy")


def full_of_ids(number: int) -> Sent:
    document = {"requestId": f"ids-{number}", "inputs": [{"tokenIds": {"ids": [1] * 300_000}}]}
    return Sent(json.dumps(document).encode(), (JSON,), b"heavy")


def full_of_text(number: int) -> Sent:
    """A text of 1 MB, to be cut to what the model takes."""
    text = ("où est la gare, " * 70_000)[:900_000]
    return Sent(query(text, f"text-{number}", truncate=pb.TRUNCATE_END).value, (PROTOBUF,), b"heavy")


CASES = {
    "65,000 inputs": (full_of_inputs, "INVALID_ARGUMENT"),
    "300,000 token ids": (full_of_ids, "OUT_OF_RANGE"),
    "a text of 1 MB": (full_of_text, "OK"),
}


@pytest.fixture(scope="module")
def running(kafka: KafkaBroker, quick: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One aggregator for all of this file."""
    topics = Topics("heavy.requests", "heavy.replies")
    dated = {"message.timestamp.type": "LogAppendTime"}  # the broker's clock says when each was written
    asyncio.run(
        make_topics(kafka.bootstrap, topics.requests, topics.replies, topics.dead_letters, partitions=2, configs=dated)
    )
    with aggregators(kafka, tmp_path_factory.mktemp("heavy"), "heavy") as start:
        yield start(quick, topics=topics)


def waits_s(records: Sequence[Sent], written: Sequence[Written], desk: KafkaClient) -> list[float]:
    """Seconds from a query's record to its reply's, by the broker's clock, of all that are not heavy."""
    answered_ms = {read(reply).request_id: reply.timestamp for reply in desk.replies}
    return [
        (answered_ms[sent.key.decode()] - place.timestamp_ms) / 1000
        for sent, place in zip(records, written, strict=True)
        if sent.key is not None and sent.key != b"heavy"
    ]


@pytest.mark.parametrize(("heavy", "code"), CASES.values(), ids=CASES)
async def test_small_queries_do_not_wait_for_heavy_records(
    running: Running, heavy: Callable[[int], Sent], code: str
) -> None:
    refused = code == "INVALID_ARGUMENT"
    records = [
        replace(sent, partition=0)
        for number in range(10)
        for sent in (heavy(number), *(query("a good question", f"good-{number}-{each}") for each in range(4)))
    ]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(query("the first", "first"))
        desk.replies.clear()
        alone = [replace(query("a good question", f"alone-{each}"), partition=0) for each in range(40)]
        alone_s = max(waits_s(alone, await desk.exchange(*alone), desk))
        desk.replies.clear()
        before = metrics(running.process.metrics_address)
        written = await desk.exchange(*records, dead=10 * refused)
        await desk.until_committed(running.group)
    waited_s = waits_s(records, written, desk)
    assert len(waited_s) == 40
    assert max(waited_s) < LONGEST_WAIT_S + 10 * alone_s
    codes = Counter(Code(answer.status.code).name for answer in desk.answers().values())
    assert codes == Counter({"OK": 40}) + Counter({code: 10})
    assert len(desk.dead_letters) == 10 * refused
    assert all(b"at most 2048 inputs" in headers(letter)["dlt-error-message"] for letter in desk.dead_letters)
    after = metrics(running.process.metrics_address)

    def rise(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert rise("tokenbatch_requests_total", source="kafka", code=code) == 10 + 40 * (code == "OK")
    assert rise("tokenbatch_dead_letters_total", code=code) == 10 * refused


@pytest.mark.parametrize("size", [100, 20_000], ids=["small", "large"])
async def test_a_record_without_a_content_type_is_protobuf_whatever_its_size(running: Running, size: int) -> None:
    value = query("word " * (size // 5), "bare", truncate=pb.TRUNCATE_END).value
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(Sent(value, (("content-type", None),), b"bare"))
        await desk.until_committed(running.group)
    assert desk.answers()["bare"].status.code == Code.OK
    assert not desk.dead_letters
