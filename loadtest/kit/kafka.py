"""Send queries through Kafka, collect their replies, and account for each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tokenbatch_client import TokenbatchError, requests, results
from tokenbatch_client.kafka import REPLIES, REQUESTS, KafkaClient, Reply
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb

from aggregator.errors import ungrouped
from loadtest.kit.formats import Format, record
from loadtest.kit.tally import Tally, answer_of
from loadtest.kit.traffic import paced

_CHUNK = 500


class KafkaRunError(Exception):
    """The broker or a topic cannot be used; the message says which."""


@dataclass(frozen=True, slots=True)
class KafkaRun:
    """One run's way through Kafka.

    `options`: the client package's, of every request. `rate` is in queries per second, None for as many as go. Once all
    is sent the run gives up when no reply has come for `timeout_s`; after the last one it reads on for `linger_s`, for
    duplicates. `client` goes to the Kafka client as it is (security_protocol …).
    """

    bootstrap: str
    request_topic: str = REQUESTS
    reply_topic: str = REPLIES
    style: Format = Format.PROTOBUF
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rate: float | None = None
    timeout_s: float = 60.0
    linger_s: float = 0.5
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def run(texts: Sequence[str], tally: Tally, plan: KafkaRun, on_progress: Callable[[], None]) -> None:
    """Send `texts`, one query each, and record in `tally` what comes of each; `on_progress` is called often.

    Raises KafkaRunError.
    """
    topics = {"requests_topic": plan.request_topic, "replies_topic": plan.reply_topic, "dead_letters": ""}
    try:
        with ungrouped(KafkaError, TokenbatchError):
            async with KafkaClient(plan.bootstrap, **topics, **plan.client) as client:
                await _Exchange(client, texts, tally, plan, on_progress).run()
    except TokenbatchError as error:
        raise KafkaRunError(error.message) from error
    except KafkaError as error:
        raise KafkaRunError(f"Kafka at {plan.bootstrap} failed: {error}") from error


class _Exchange:
    """Queries on their way and replies on theirs. A query's number travels in its correlation id."""

    def __init__(
        self, client: KafkaClient, texts: Sequence[str], tally: Tally, plan: KafkaRun, on_progress: Callable[[], None]
    ) -> None:
        self._client = client
        self._texts = texts
        self._tally = tally
        self._plan = plan
        self._on_progress = on_progress
        self._run_id = secrets.token_hex(4)
        self._active_s = time.monotonic()
        self._all_sent = False

    async def run(self) -> None:
        """Until every query is answered, or none has been for too long."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_all(), name="send")
            tasks.create_task(self._collect(), name="collect")

    async def _send_all(self) -> None:
        async for numbers in paced(len(self._texts), self._plan.rate, _CHUNK):
            await self._client.send(map(self._record, numbers))
            self._on_progress()
        await self._client.flush()
        self._all_sent = True

    def _record(self, number: int) -> Any:
        request = requests.embed([self._texts[number]], self._plan.options, f"{self._run_id}-{number}")
        self._active_s = time.monotonic()
        self._tally.record_sent(range(number, number + 1), self._active_s)
        return record(request, self._plan.style)

    async def _collect(self) -> None:
        plan, tally = self._plan, self._tally
        while True:
            replies = await self._client.receive()
            now_s = time.monotonic()
            for each in replies:
                self._read(each, now_s)
            self._on_progress()
            quiet_s = now_s - self._active_s
            if tally.complete and quiet_s > plan.linger_s:
                return
            if self._all_sent and quiet_s > plan.timeout_s:
                return

    def _read(self, reply: Reply, now_s: float) -> None:
        """Record one reply; those to other runs pass by."""
        run_id, _, digits = reply.request_id.partition("-")
        if run_id != self._run_id:
            return
        self._active_s = now_s
        try:
            response = reply.read(pb.EmbedResponse)
        except (DecodeError, json_format.ParseError):
            self._tally.mismatched += 1
            return
        names_another = self._plan.style is not Format.TEXT and response.request_id != reply.request_id
        if names_another or reply.record.key != reply.request_id.encode():
            self._tally.mismatched += 1
        for row in results.rows(response, 1):
            self._tally.record_answer(int(digits), answer_of(row), now_s)
