"""CloudEvents' official SDK writes requests to Kafka and reads the replies, in both content modes."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from loadtest.stack.part import python_of
from tests.clients.conftest import Stack

REQUESTS, REPLIES = "embed.requests.v1", "embed.replies.v1"
WAIT_S = 30.0
READ = """
import base64, json, sys
from cloudevents.core.bindings import kafka
from cloudevents.core.v1.event import CloudEvent
given = json.load(sys.stdin)
"""
ASK = """
attributes = {"id": given["id"], "source": "/shop", "type": "question", "datacontenttype": "application/json"}
event = CloudEvent({**attributes, "correlationid": "order-1", "partitionkey": "customer-3"}, given["data"])
message = kafka.to_binary_event(event) if given["binary"] else kafka.to_structured_event(event)
print(json.dumps({
    "key": message.key,
    "value": base64.b64encode(message.value).decode(),
    "headers": {name: value.decode() for name, value in message.headers.items()},
}))
"""
ANSWER = """
headers = {name: value.encode() for name, value in given["headers"].items()}
event = kafka.from_kafka_event(kafka.KafkaMessage(headers, given["key"], base64.b64decode(given["value"])))
print(json.dumps({**event.get_attributes(), "time": event.get_time().timestamp(), "data": event.get_data()}))
"""

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


def by_sdk(program: str, given: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [python_of("clients"), "-c", READ + program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


async def reply_to(message: dict[str, Any], stack: Stack) -> dict[str, Any]:
    """Send a message, and take the one reply that names it."""
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka)
    consumer = AIOKafkaConsumer(bootstrap_servers=stack.kafka)
    async with producer, consumer:
        places = [TopicPartition(REPLIES, number) for number in await producer.partitions_for(REPLIES)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)
        headers = [(name, value.encode()) for name, value in message["headers"].items()]
        value = base64.b64decode(message["value"])
        await producer.send_and_wait(REQUESTS, value, key=message["key"].encode(), headers=headers)
        record = await asyncio.wait_for(anext(aiter(consumer)), WAIT_S)
    return {
        "key": (record.key or b"").decode(),
        "value": base64.b64encode(record.value or b"").decode(),
        "headers": {name: value.decode() for name, value in record.headers},
    }


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "structured"])
async def test_the_sdk_reads_the_reply_to_what_it_wrote(stack: Stack, *, binary: bool) -> None:
    asked = by_sdk(ASK, {"id": "event-7", "binary": binary, "data": {"inputs": [{"text": "why is the sky blue"}]}})
    assert ("ce_id" in asked["headers"]) is binary
    reply = await reply_to(asked, stack)
    assert ("ce_id" in reply["headers"]) is binary
    read = by_sdk(ANSWER, reply)
    data = read.pop("data")
    assert read.pop("time") == pytest.approx(time.time(), abs=60)
    assert read == {
        "specversion": "1.0",
        "id": data["replyId"],
        "source": "/tokenbatch/tokenbatch",
        "type": "embedding.v1.EmbedResponse",
        "datacontenttype": "application/json",
        "subject": "event-7",
        "causationid": "event-7",
        "correlationid": "order-1",
        "partitionkey": "customer-3",
    }
    assert (data["requestId"], data.get("status", {})) == ("event-7", {})
    vector = np.frombuffer(base64.b64decode(data["embeddings"][0]["embedding"]), "<f4")
    assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-3)
