"""Texts through the whole aggregator: from calls and from Kafka, over servers that die, with every way to be refused.

The servers compute no model: each token follows from the seed and all tokens before it, so that every text is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2
from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1 import generation_pb2_grpc as pb_grpc
from tests.faults.topic_logs import read_topics
from tests.support.kafka_client import JSON, TEXT, Sent, Topics, headers, open_kafka_client
from tests.support.processes import Running, StartAggregator, aggregators, synthetic
from tests.support.scrape import metrics

pytestmark = pytest.mark.timeout(300)

POISON = 9947
GENERATES = {
    "MODEL__TASK": "generate",
    "MODEL__MAX_INPUT_TOKENS": "512",
    "SYNTHETIC__FIXED_S": "0.01",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
}
PROMPT = "what is the capital of france"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with synthetic(
        tmp_path_factory.mktemp("generating") / "log", **GENERATES, SYNTHETIC__POISON_TOKEN_ID=str(POISON)
    ) as server:
        yield server


@pytest.fixture
def start(start_aggregator: StartAggregator) -> Any:
    """An aggregator whose topic asks for texts."""

    def started(*servers: ModelServer, name: str, **of_topic: str) -> Running:
        made = Topics(f"{name}.requests", f"{name}.replies")
        topic = {"name": made.requests, "task": "generate", "reply_topic": made.replies, **of_topic}
        return start_aggregator(*servers, topics=made, settings={"KAFKA__TOPICS": json.dumps([topic])})

    return started


class Texts:
    """What came of one call."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.responses: list[pb.GenerateResponse] = []
        self.code = grpc.StatusCode.OK
        self.details = ""

    @property
    def last(self) -> pb.GenerateResponse:
        return self.responses[-1]


def generated(server: ModelServer) -> float:
    return metrics(server.metrics_address).value("tokenbatch_generate_engine_tokens_total", kind="new")


async def generate(address: str, *, timeout_s: float = 60.0, **fields: Any) -> Texts:
    """One call, to its end; every token is checked to come once and in order."""
    fields.setdefault("prompt", PROMPT)
    if fields["prompt"] is None:
        del fields["prompt"]
    request = pb.GenerateRequest(include_token_ids=True, **fields)
    came = Texts()
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            async for response in pb_grpc.GenerationStub(channel).Generate(request, timeout=timeout_s):
                assert response.index == len(came.token_ids)
                came.responses.append(response)
                came.text += response.text
                came.token_ids += response.token_ids
        except grpc.aio.AioRpcError as error:
            came.code, came.details = error.code(), error.details() or ""
    return came


@pytest.fixture(scope="module")
def shared(kafka: Any, generating: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An aggregator that several tests call."""
    with aggregators(kafka, tmp_path_factory.mktemp("shared"), "texts-shared") as started:
        yield started(generating)


async def test_a_text_comes_as_it_is_generated_or_at_once(shared: Running) -> None:
    sampling = pb.Sampling(max_tokens=20, seed=3)
    streamed = await generate(shared.process.address, sampling=sampling)
    assert len(streamed.responses) > 5
    assert streamed.last.finish_reason == pb.FINISH_REASON_LENGTH
    assert (streamed.last.usage.completion_tokens, len(streamed.token_ids)) == (20, 20)
    timings = streamed.last.timings
    assert timings.queued.ToNanoseconds() < timings.first_token.ToNanoseconds() < timings.total.ToNanoseconds()
    whole = await generate(shared.process.address, sampling=sampling, final_only=True)
    assert len(whole.responses) == 1
    assert (whole.text, whole.token_ids) == (streamed.text, streamed.token_ids)
    by_ids = await generate(
        shared.process.address, prompt=None, token_ids=embedding_pb2.TokenIds(ids=[5, 6]), sampling=sampling
    )
    assert by_ids.last.usage.prompt_tokens == 2
    measured = metrics(shared.process.metrics_address)
    assert measured.value("gen_ai_server_time_to_first_token_seconds_count") >= 3


async def test_a_stop_string_ends_the_text_before_it_and_stop_tokens_are_none(shared: Running) -> None:
    whole = await generate(shared.process.address, sampling=pb.Sampling(max_tokens=30))
    stop = whole.text[10:14]
    cut = await generate(shared.process.address, sampling=pb.Sampling(max_tokens=30, stop=[stop]))
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert (cut.last.finish_reason, cut.last.stop) == (pb.FINISH_REASON_STOP, stop)
    token = whole.token_ids[4]
    stopped = await generate(shared.process.address, sampling=pb.Sampling(max_tokens=30, stop_token_ids=[token]))
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert whole.text.startswith(stopped.text)
    assert stopped.last.finish_reason == pb.FINISH_REASON_STOP


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"prompt": ""}, grpc.StatusCode.INVALID_ARGUMENT, "give a prompt"),
        ({"model": "nobody"}, grpc.StatusCode.NOT_FOUND, "not configured"),
        ({"sampling": {"n": 2}}, grpc.StatusCode.INVALID_ARGUMENT, "sampling.n"),
        ({"prompt": "a " * 600}, grpc.StatusCode.OUT_OF_RANGE, "those of the text included"),
        ({"prompt": None, "messages": CHAT}, grpc.StatusCode.INVALID_ARGUMENT, "no chat template"),
        ({"prompt": None, "token_ids": {"ids": [10**6]}}, grpc.StatusCode.INVALID_ARGUMENT, "vocabulary"),
        (
            {"sampling": {"stop_token_ids": [10**6], "min_tokens": 1}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.stop_token_ids holds an id that is not below 30522",
        ),
        ({"first_token_timeout": {"nanos": 1_000_000}}, grpc.StatusCode.DEADLINE_EXCEEDED, ""),
        ({"expire_time": {"seconds": 1}}, grpc.StatusCode.DEADLINE_EXCEEDED, "before the request arrived"),
    ],
)
async def test_bad_requests_are_refused_by_name(
    shared: Running, fields: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    came = await generate(shared.process.address, **fields)
    assert (came.code, came.responses) == (code, [])
    assert words in came.details


async def test_records_are_answered_once_and_committed(start: Any, generating: ModelServer) -> None:
    running = start(generating, name="kafka")
    sampling = pb.Sampling(max_tokens=12, seed=5)
    records = [
        Sent(pb.GenerateRequest(request_id=f"r{number}", prompt=PROMPT, sampling=sampling).SerializeToString())
        for number in range(20)
    ]
    document = {"requestId": "j", "prompt": PROMPT, "sampling": {"maxTokens": 12, "seed": "5"}}
    records += [Sent(json.dumps(document).encode(), headers=(JSON,)), Sent(PROMPT.encode(), headers=(TEXT,))]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(*records)
        told = [reply(record) for record in desk.replies]
        texts = {each.request_id: each.text for each in told}
        called = await generate(running.process.address, sampling=sampling)
        assert all(texts[f"r{number}"] == called.text for number in range(20))
        assert texts["j"] == called.text
        assert all(each.finish_reason == pb.FINISH_REASON_LENGTH for each in told)
        assert len({each.reply_id for each in told}) == len(records)
        await desk.until_committed(running.group)


def reply(record: Any) -> pb.GenerateResponse:
    """What a record says, in whichever format."""
    value = record.value or b""
    if headers(record)["content-type"] == b"application/json":
        return json_format.Parse(value, pb.GenerateResponse())
    return pb.GenerateResponse.FromString(value)


async def test_texts_are_written_as_they_grow_to_a_topic_of_their_own(start: Any, generating: ModelServer) -> None:
    running = start(generating, name="grow", delta_topic="grow.deltas")
    sampling = pb.Sampling(max_tokens=60, seed=1)
    requests = [
        pb.GenerateRequest(request_id=f"r{number}", prompt=f"{PROMPT} {number}", sampling=sampling)
        for number in range(4)
    ]
    async with open_kafka_client(running.kafka, running.topics) as desk:
        await desk.exchange(*(Sent(request.SerializeToString(), key=b"k") for request in requests))
        replies = {each.request_id: each for each in map(reply, desk.replies)}
    parts: dict[str, list[pb.GenerateResponse]] = {name: [] for name in replies}
    async for record in read_topics(running.kafka, "grow.deltas"):
        part = pb.GenerateResponse.FromString(record.value or b"")
        parts[part.request_id].append(part)
    for name, whole in replies.items():
        assert "".join(part.text for part in parts[name]) == whole.text
        assert len(parts[name]) > 3
        indexes = [part.index for part in parts[name]]
        assert indexes == sorted(set(indexes))
        assert {part.reply_id for part in parts[name]} == {whole.reply_id}
        assert [part.finish_reason for part in parts[name]][-1] == whole.finish_reason
