"""Have 20 real questions answered: streamed over gRPC, through Kafka, and one by one beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Column, Table
from tokenbatch_client import AsyncClient, requests
from tokenbatch_client.kafka import PROTOBUF, KafkaClient

from protos.generation.v1 import generation_pb2 as pb

REQUEST_TOPIC, REPLY_TOPIC = "generate.requests.v1", "generate.replies.v1"
_SAMPLING = {"max_tokens": 48, "temperature": 0.0}
_TIMEOUT_S = 600.0
_SHOWN = 96


@dataclass(slots=True)
class Answered:
    """One question's text; times in seconds. `intervals_s`: between its responses, where it was streamed."""

    question: str
    text: str
    tokens: int
    first_token_s: float
    intervals_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Passage:
    """All questions by one way, and how long they took."""

    way: str
    answers: Sequence[Answered]
    took_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of all texts together."""
        return sum(answer.tokens for answer in self.answers) / self.took_s


def take(
    questions: Sequence[str],
    grpc_address: str,
    kafka: str,
    show: Callable[[str], None],
    client: Mapping[str, Any],
) -> list[Passage]:
    """The questions by each way; `show` gets the first text as it comes. Raises TokenbatchError, KafkaError."""
    return asyncio.run(_take(questions, grpc_address, kafka, show, client))


async def _take(
    questions: Sequence[str], address: str, kafka: str, show: Callable[[str], None], kafka_client: Mapping[str, Any]
) -> list[Passage]:
    async with AsyncClient(address) as client:
        began_s = time.monotonic()
        streams = [_ask(client, question, show if not place else None) for place, question in enumerate(questions)]
        streamed = Passage("gRPC, all at once", await asyncio.gather(*streams), time.monotonic() - began_s)
        show("\n\n")
        records = await _through_kafka(questions, kafka, kafka_client)
        began_s = time.monotonic()
        alone = [await _ask(client, question, None) for question in questions]
        one_by_one = Passage("gRPC, one by one", alone, time.monotonic() - began_s)
    return [streamed, records, one_by_one]


async def _ask(client: AsyncClient, question: str, show: Callable[[str], None] | None) -> Answered:
    began_s = last_s = time.monotonic()
    first_s = 0.0
    intervals: list[float] = []
    text = ""
    tokens = 0
    async for response in client.stream(_chat(question), timeout_s=_TIMEOUT_S, **_SAMPLING):
        now_s = time.monotonic()
        if not text:
            first_s = now_s - began_s
        else:
            intervals.append(now_s - last_s)
        last_s = now_s
        text += response.text
        tokens = response.usage.completion_tokens
        if show is not None:
            show(response.text)
    return Answered(question, text, tokens, first_s, intervals)


async def _through_kafka(questions: Sequence[str], bootstrap: str, client: Mapping[str, Any]) -> Passage:
    topics = {"requests_topic": REQUEST_TOPIC, "replies_topic": REPLY_TOPIC, "dead_letters": ""}
    async with KafkaClient(bootstrap, **topics, **client) as kafka, asyncio.timeout(_TIMEOUT_S):
        began_s = time.monotonic()
        waiting = {f"question-{number}-{began_s}": question for number, question in enumerate(questions)}
        made = [requests.generate(_chat(question), _SAMPLING, name) for name, question in waiting.items()]
        await kafka.send([(each.request_id, each.SerializeToString(), [PROTOBUF]) for each in made])
        await kafka.flush()
        answers: list[Answered] = []
        while waiting:
            for reply in await kafka.receive():
                question = waiting.pop(reply.request_id, None)
                if question is not None:
                    text = reply.read(pb.GenerateResponse)
                    first_s = text.timings.first_token.ToMilliseconds() / 1000
                    answers.append(Answered(question, text.text, text.usage.completion_tokens, first_s, ()))
        return Passage("Kafka, all at once", answers, time.monotonic() - began_s)


def _chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def texts_table(passages: Sequence[Passage]) -> Table:
    """The questions, and what was answered over gRPC."""
    table = Table(*(Column(title, overflow="fold") for title in ("question", "text")), title="Questions and texts")
    for answer in passages[0].answers:
        text = " ".join(answer.text.split())
        table.add_row(answer.question, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
    return table


def ways_table(passages: Sequence[Passage]) -> Table:
    """How long each way took."""
    titles = ("texts", "tokens/s", "first token p50", "p95", "between tokens p50", "p95")
    table = Table("way", *(Column(title, justify="right") for title in titles), title="Ways")
    for passage in passages:
        first = _percentiles([answer.first_token_s for answer in passage.answers])
        between = _percentiles([each for answer in passage.answers for each in answer.intervals_s])
        answered = sum(bool(answer.text) for answer in passage.answers)
        table.add_row(passage.way, str(answered), f"{passage.tokens_per_s:.1f}", *first, *between)
    return table


def _percentiles(seconds: Sequence[float]) -> tuple[str, str]:
    if not seconds:
        return "-", "-"
    p50, p95 = np.percentile(seconds, (50, 95)).tolist()
    return f"{p50 * 1000:.0f} ms", f"{p95 * 1000:.0f} ms"
