"""Every outcome of every task through every door, and what its spans and metrics say: OpenTelemetry's conventions."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import aiohttp
import grpc
import grpc.aio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from google.protobuf.timestamp_pb2 import Timestamp

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import Aggregator
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.generation.v1 import generation_pb2 as gen
from protos.generation.v1 import generation_pb2_grpc as gen_grpc
from protos.ranking.v1 import ranking_pb2 as rank
from protos.ranking.v1 import ranking_pb2_grpc as rank_grpc
from tests.support.conventions import SERVER_ERRORS, conforms, http_error
from tests.support.otlp_collector import Collector, ExportedSpan, collecting
from tests.support.processes import synthetic
from tests.support.scrape import metrics
from tests.support.until import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = "zyzzyva"
POISON_ID, POISON = "9947", "poison"
BOTH, RANKER, SLOW = "both", "ranker", "slow"
TASKS = {"embed": BOTH, "generate": BOTH, "rank": RANKER}
REPLIES, DEAD = ".replies", "-dlt"
LONG = f"{SECRET} " * 2000
WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class HttpCase:
    """A request over HTTP, its response's status, and the route that its span names."""

    path: str
    body: Mapping[str, Any] | str | None
    status: int
    method: str = "POST"
    route: str | None = None
    wait_s: float | None = None

    @property
    def pattern(self) -> str:
        return self.path if self.route is None else self.route


EMBED = {"model": BOTH, "input": SECRET}
COMPLETE = {"model": BOTH, "prompt": SECRET, "max_tokens": 2}
CHAT = {"model": BOTH, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
RERANK = {"model": RANKER, "query": SECRET, "documents": [SECRET, "b"]}
HTTP_CASES = [
    HttpCase("/v1/embeddings", EMBED, 200),
    HttpCase("/v1/embeddings", {**EMBED, SECRET: 1}, 400),
    HttpCase("/v1/embeddings", f'{{"{SECRET}', 400),
    HttpCase("/v1/embeddings", {**EMBED, "input": LONG}, 400),
    HttpCase("/v1/embeddings", {**EMBED, "model": "no"}, 404),
    HttpCase("/v1/embeddings", {**EMBED, "input": f"{SECRET} {POISON}"}, 500),
    HttpCase("/v1/embeddings", {**EMBED, "model": SLOW}, 504, wait_s=WAIT_S),
    HttpCase("/v1/embeddings", None, 405, "GET"),
    HttpCase("/v2/embed", {"model": BOTH, "texts": [SECRET], "input_type": "clustering"}, 200),
    HttpCase("/v1/completions", COMPLETE, 200),
    HttpCase("/v1/completions", {**COMPLETE, "stream": True}, 200),
    HttpCase("/v1/completions", {**COMPLETE, SECRET: 1}, 400),
    HttpCase("/v1/completions", {**COMPLETE, "model": "no"}, 404),
    HttpCase("/v1/chat/completions", {**CHAT, "n": 2}, 400),
    HttpCase("/rerank", RERANK, 200),
    HttpCase("/v1/rerank", {**RERANK, SECRET: 1}, 400),
    HttpCase("/v2/rerank", {**RERANK, "model": "no"}, 404),
    HttpCase("/score", {"model": RANKER, "text_1": SECRET, "text_2": SECRET}, 200),
    HttpCase("/classify", {"model": "no", "input": SECRET}, 404),
    HttpCase("/tokenize", {"model": BOTH, "prompt": SECRET}, 200),
    HttpCase("/v1/models", None, 200, "GET"),
    HttpCase(f"/v1/models/{BOTH}", None, 200, "GET", "/v1/models/{model}"),
    HttpCase("/v1/nothing", EMBED, 404, route=""),
    HttpCase("/v1/embeddings", None, 405, "PROPFIND"),
]


def text(model: str, *texts: str) -> pb.EmbedRequest:
    return pb.EmbedRequest(model=model, inputs=[pb.Input(text=each) for each in texts])


GENERATE = gen.GenerateRequest(model=BOTH, prompt=SECRET, sampling=gen.Sampling(max_tokens=2))
RANK = rank.RankRequest(model=RANKER, query=SECRET, documents=[SECRET, "b"])
SCORE = rank.ScoreRequest(model=RANKER, pairs=[rank.Pair(text=SECRET, second_text=SECRET)])
GRPC_CASES: list[tuple[str, Any, str]] = [
    ("embedding.v1.Embeddings/Embed", text(BOTH, SECRET), "OK"),
    ("embedding.v1.Embeddings/Embed", text(BOTH), "INVALID_ARGUMENT"),
    ("embedding.v1.Embeddings/Embed", text("no", SECRET), "NOT_FOUND"),
    ("embedding.v1.Embeddings/Embed", text(BOTH, LONG), "OUT_OF_RANGE"),
    ("embedding.v1.Embeddings/Embed", text(BOTH, f"{SECRET} {POISON}"), "INTERNAL"),
    ("embedding.v1.Embeddings/Embed", text(SLOW, SECRET), "DEADLINE_EXCEEDED"),
    ("embedding.v1.Embeddings/ListModels", pb.ListModelsRequest(), "OK"),
    ("embedding.v1.Embeddings/EmbedStream", text(BOTH, SECRET), "OK"),
    ("generation.v1.Generation/Generate", GENERATE, "OK"),
    ("generation.v1.Generation/Generate", gen.GenerateRequest(model="no", prompt=SECRET), "NOT_FOUND"),
    ("ranking.v1.Ranking/Rank", RANK, "OK"),
    ("ranking.v1.Ranking/Rank", rank.RankRequest(model=RANKER), "INVALID_ARGUMENT"),
    ("ranking.v1.Ranking/Score", SCORE, "OK"),
]


@dataclass(frozen=True, slots=True)
class Stack:
    """An aggregator before model servers of every task, all of which export their spans."""

    aggregator: Aggregator
    kafka: str
    name: str
    collector: Collector

    def topic(self, task: str) -> str:
        return f"{self.name}.{task}"


@pytest.fixture(scope="module")
def stack(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    folder, name = tmp_path_factory.mktemp("telemetry"), f"telemetry-{secrets.token_hex(4)}"
    topics = [
        {"name": f"{name}.{task}", "task": task, "model": model, "reply_topic": f"{name}.{task}{REPLIES}"}
        for task, model in TASKS.items()
    ]
    with collecting() as collector:
        exports = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        poison = {"SYNTHETIC__POISON_TOKEN_ID": POISON_ID}
        with (
            patch.dict(os.environ, exports),
            synthetic(folder / "both.log", MODEL__NAME=BOTH, MODEL__TASK="both", **poison) as both,
            synthetic(folder / "ranker.log", MODEL__NAME=RANKER, MODEL__TASK="rank") as ranker,
            synthetic(folder / "slow.log", MODEL__NAME=SLOW, SYNTHETIC__FIXED_S="3") as slow,
        ):
            models = [{"name": server.model, "servers": [server.address]} for server in (both, ranker, slow)]
            named = [{**model, "name": each} for model, each in zip(models, (BOTH, RANKER, SLOW), strict=True)]
            settings = {
                "KAFKA__TOPICS": json.dumps(topics),
                "KAFKA__REPLY_TOPIC": f"{name}.other",
                "KAFKA__GROUP_ID": name,
                "KAFKA__PARTITIONS": "1",
                "MODELS": json.dumps(named),
                "BATCHING__COALESCE": "false",
            }
            log = folder / "aggregator.log"
            with Aggregator(log, kafka=kafka.bootstrap, model="", servers=[], settings=settings) as aggregator:
                yield Stack(aggregator, kafka.bootstrap, name, collector)


class Traces:
    """The trace that each call continues."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def new(self) -> str:
        """A caller's `traceparent`."""
        self.ids.append(secrets.token_hex(16))
        return f"00-{self.ids[-1]}-{secrets.token_hex(8)}-01"


@contextmanager
def collected(stack: Stack, traces: Traces) -> Generator[list[ExportedSpan]]:
    """The spans of calls that are made in the block, one a call."""
    found: list[ExportedSpan] = []
    yield found

    def servers() -> Mapping[str, ExportedSpan]:
        spans = [
            span for span in stack.collector.spans if span.kind == "SERVER" and span.service.endswith("aggregator")
        ]
        return {span.trace: span for span in spans}

    wait_until(lambda: {*traces.ids} <= servers().keys(), "every call has a span", 30.0)
    found += [servers()[trace] for trace in traces.ids]


async def test_every_outcome_over_http_has_its_span_and_is_measured(stack: Stack) -> None:
    traces = Traces()
    with collected(stack, traces) as spans:
        async with aiohttp.ClientSession(f"http://{stack.aggregator.http_address}") as session:
            for case in HTTP_CASES:
                headers = {"traceparent": traces.new(), "content-type": "application/json"}
                if case.wait_s is not None:
                    headers["x-request-timeout"] = str(case.wait_s)
                data = case.body if isinstance(case.body, str) or case.body is None else json.dumps(case.body)
                async with session.request(case.method, case.path, data=data, headers=headers) as response:
                    await response.read()
                    assert response.status == case.status, case
    measured = metrics(stack.aggregator.metrics_address)
    counts: Counter[tuple[str, str, int]] = Counter()
    for case, span in zip(HTTP_CASES, spans, strict=True):
        conforms(span, SECRET)
        assert span.attributes["http.response.status_code"] == case.status, case
        assert span.attributes.get("http.route", "") == case.pattern
        method = case.method if case.method != "PROPFIND" else "_OTHER"
        assert span.attributes["http.request.method"] == method
        counts[method, case.pattern, case.status] += 1
    for (method, route, status), count in counts.items():
        labels = {"http_request_method": method, "http_route": route, "http_response_status_code": str(status)}
        others = {"url_scheme": "http", "error_type": http_error(status) or ""}
        assert measured.value("http_server_request_duration_seconds_count", **labels, **others) == count


async def test_a_caller_over_http_who_goes_away_has_a_span_without_a_status(stack: Stack) -> None:
    traces = Traces()
    with collected(stack, traces) as spans:
        async with aiohttp.ClientSession(f"http://{stack.aggregator.http_address}") as session:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    body = {"model": SLOW, "input": SECRET}
                    await session.post("/v1/embeddings", json=body, headers={"traceparent": traces.new()})
    (span,) = spans
    assert span.failed
    assert "http.response.status_code" not in span.attributes
    assert span.attributes["error.type"] == "CANCELLED"


async def called(channel: grpc.aio.Channel, method: str, message: Any, traceparent: str) -> str:
    """Make one call; its status."""
    service, _, name = method.rpartition("/")
    stubs: Mapping[str, Any] = {
        "embedding.v1.Embeddings": pb_grpc.EmbeddingsStub,
        "generation.v1.Generation": gen_grpc.GenerationStub,
        "ranking.v1.Ranking": rank_grpc.RankingStub,
    }
    timeout_s = WAIT_S if getattr(message, "model", "") == SLOW else 60.0
    call = getattr(stubs[service](channel), name)
    told: Any = iter([message]) if name == "EmbedStream" else message
    made = call(told, timeout=timeout_s, metadata=(("traceparent", traceparent),))
    try:
        if name in {"EmbedStream", "Generate"}:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_every_outcome_over_grpc_has_its_span_and_is_measured(stack: Stack) -> None:
    traces = Traces()
    with collected(stack, traces) as spans:
        async with grpc.aio.insecure_channel(stack.aggregator.address) as channel:
            for method, message, code in GRPC_CASES:
                assert await called(channel, method, message, traces.new()) == code, method
            stub = pb_grpc.EmbeddingsStub(channel)
            left = stub.Embed(text(SLOW, SECRET), metadata=(("traceparent", traces.new()),))
            await asyncio.sleep(WAIT_S)
            left.cancel()
    expected = [*((method, code) for method, _, code in GRPC_CASES), ("embedding.v1.Embeddings/Embed", "CANCELLED")]
    measured = metrics(stack.aggregator.metrics_address)
    for (method, code), span in zip(expected, spans, strict=True):
        conforms(span, SECRET)
        assert (span.name, span.attributes["rpc.response.status_code"]) == (method, code)
    for (method, code), count in Counter(expected).items():
        labels = {"rpc_method": method, "rpc_response_status_code": code, "rpc_system_name": "grpc"}
        error = code if code in SERVER_ERRORS else ""
        assert measured.value("rpc_server_call_duration_seconds_count", **labels, error_type=error) == count


@dataclass(frozen=True, slots=True)
class KafkaCase:
    """A record of a task's topic, the code of its outcome, and where that is written."""

    task: str
    message: Any
    code: str
    written: tuple[str, ...] = (REPLIES,)

    @property
    def value(self) -> bytes:
        return self.message if isinstance(self.message, bytes) else self.message.SerializeToString()


LATE = Timestamp(seconds=1)
KAFKA_CASES = [
    KafkaCase("embed", text(BOTH, SECRET), "OK"),
    KafkaCase("embed", text(BOTH), "INVALID_ARGUMENT"),
    KafkaCase("embed", text("no", SECRET), "NOT_FOUND"),
    KafkaCase("embed", text(BOTH, LONG), "OUT_OF_RANGE"),
    # A text of its own: that of the calls is in quarantine, and no batch would hold it.
    KafkaCase("embed", text(BOTH, f"{POISON} {SECRET}"), "INTERNAL", (REPLIES, DEAD)),
    KafkaCase("embed", pb.EmbedRequest(inputs=[pb.Input(text=SECRET)], expire_time=LATE), "DEADLINE_EXCEEDED"),
    KafkaCase("generate", GENERATE, "OK"),
    KafkaCase("generate", gen.GenerateRequest(), "INVALID_ARGUMENT"),
    KafkaCase("generate", gen.GenerateRequest(model="no", prompt=SECRET), "NOT_FOUND"),
    KafkaCase("generate", gen.GenerateRequest(prompt=SECRET, expire_time=LATE), "DEADLINE_EXCEEDED"),
    KafkaCase("rank", RANK, "OK"),
    KafkaCase("rank", rank.RankRequest(), "INVALID_ARGUMENT"),
    KafkaCase("rank", rank.RankRequest(model="no", query=SECRET, documents=["b"]), "NOT_FOUND"),
    KafkaCase("rank", rank.RankRequest(query=SECRET, documents=["b"], expire_time=LATE), "DEADLINE_EXCEEDED"),
    *(KafkaCase(task, b"\xff", "DATA_LOSS", (REPLIES, DEAD)) for task in TASKS),
]


async def read(consumer: Any, count: int) -> list[tuple[int, str]]:
    """So many records: the number of the case that each is about, by its key, and where it is."""
    found: list[tuple[int, str]] = []
    async with asyncio.timeout(60.0):
        while len(found) < count:
            record = await consumer.getone()
            found.append((int(record.key), record.topic))
    return sorted(found)


async def test_every_outcome_over_kafka_has_its_spans_and_is_counted(stack: Stack) -> None:
    traces, topics = Traces(), [stack.topic(task) + end for task in TASKS for end in (REPLIES, DEAD)]
    written = [
        (number, stack.topic(case.task) + end) for number, case in enumerate(KAFKA_CASES) for end in case.written
    ]
    consumer: Any = AIOKafkaConsumer(*topics, bootstrap_servers=stack.kafka, auto_offset_reset="earliest")
    async with AIOKafkaProducer(bootstrap_servers=stack.kafka) as producer, consumer:
        for number, case in enumerate(KAFKA_CASES):
            headers = [("traceparent", traces.new().encode())]
            await producer.send_and_wait(stack.topic(case.task), case.value, b"%d" % number, headers=headers)
        assert await read(consumer, len(written)) == sorted(written)
    counts: Counter[Any] = Counter(f"receive {stack.topic(case.task)}" for case in KAFKA_CASES)
    counts.update(f"send {topic}" for _, topic in written)

    counts.update((case.task, case.code) for case in KAFKA_CASES if case.code in {"OK", "INTERNAL"})

    def carried() -> Counter[Any]:
        """The records in spans of each name; and the cases that were computed, by the trace that each continues."""
        carried: Counter[Any] = Counter()
        traced: set[str] = set()
        for span in stack.collector.spans:
            carried[span.name] += span.attributes.get("messaging.batch.message_count", 0)
            traced |= {span.trace, *span.links}
        carried = Counter({name: count for name, count in carried.items() if name.startswith(("receive ", "send "))})
        cases = zip(KAFKA_CASES, traces.ids, strict=True)
        carried.update((case.task, case.code) for case, trace in cases if trace in traced)
        return carried

    with suppress(TimeoutError):
        wait_until(lambda: carried() >= counts, "every record is in a span", 30.0)
    assert carried() == counts
    measured = metrics(stack.aggregator.metrics_address)
    for code, count in Counter(case.code for case in KAFKA_CASES).items():
        assert measured.value("tokenbatch_requests_total", source="kafka", code=code) == count, code
    for code, count in Counter(case.code for case in KAFKA_CASES if DEAD in case.written).items():
        assert measured.value("tokenbatch_dead_letters_total", code=code) == count, code


async def test_every_span_of_every_process_is_by_the_conventions(stack: Stack) -> None:
    """After all calls above: what the servers and the batches exported, failed ones among them."""
    spans = stack.collector.spans
    for span in spans:
        if span.attributes.get("error.type") != "CANCELLED":
            conforms(span, SECRET)
    steps = {span.name for span in spans if span.kind == "CLIENT" and "rpc.method" in span.attributes}
    assert steps >= {f"embeddings {BOTH}", f"rank {RANKER}"}
    served = [span for span in spans if span.name == "modelserver.v1.ModelServer/EmbedBatch"]
    assert {span.attributes["rpc.response.status_code"] for span in served} >= {"OK", "INTERNAL"}
    batches = [span for span in spans if span.name.startswith("process ")]
    assert {span.attributes.get("error.type") for span in batches} >= {None, "INTERNAL"}
