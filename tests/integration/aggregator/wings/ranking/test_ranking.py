"""Scores through the whole aggregator, by calls and Kafka: equal to what the engine makes of each pair's tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf import json_format
from tokenizers import Tokenizer

from aggregator.tokenizers.tokenizer import TOKENIZER_FILE
from loadtest.stack.instant_modelserver import tokenizer_folder
from loadtest.stack.service import ModelServer
from modelserver.engines.synthetic import scores
from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from protos.ranking.v1 import ranking_pb2 as pb
from protos.ranking.v1 import ranking_pb2_grpc as pb_grpc
from tests.support.kafka_client import JSON, TEXT, Sent, Topics, open_kafka_client
from tests.support.processes import Running, StartAggregator, synthetic

pytestmark = pytest.mark.timeout(300)

QUERY = "what is the capital of france?"
DOCUMENTS = ["Paris is.", "naïve café 雨", "", "Berlin " * 40, "Rome."]


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with synthetic(tmp_path_factory.mktemp("ranking") / "log", MODEL__TASK="rank") as server:
        yield server


@pytest.fixture(scope="module")
def classifying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with synthetic(tmp_path_factory.mktemp("classifying") / "log", MODEL__TASK="classify") as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(tokenizer_folder() / TOKENIZER_FILE))
    made.no_padding()
    made.no_truncation()
    return made


def expected(tokenizer: Tokenizer, query: str, documents: Sequence[str]) -> dict[int, float]:
    """The synthetic engine's score of each pair that is not empty, as the tokenizer itself makes it."""
    ids = {index: tokenizer.encode(query, each).ids for index, each in enumerate(documents) if each}
    return {
        index: float(scores(np.array(each, np.int32), np.array([len(each)]), 1)[0, 0]) for index, each in ids.items()
    }


def found(answer: pb.RankResponse) -> dict[int, float]:
    return {each.index: each.score for each in answer.results if not each.status.code}


async def test_a_call_ranks_documents(
    ranking: ModelServer, start_aggregator: StartAggregator, tokenizer: Tokenizer
) -> None:
    running = start_aggregator(ranking)
    async with grpc.aio.insecure_channel(running.process.address) as channel:
        stub = pb_grpc.RankingStub(channel)
        answer = await stub.Rank(pb.RankRequest(request_id="r", query=QUERY, documents=DOCUMENTS, top_n=3))
        scored = await stub.Score(pb.ScoreRequest(pairs=[pb.Pair(text=QUERY, second_text="Rome.")]))
        many = await stub.Rank(pb.RankRequest(query=QUERY, documents=[f"number {n}" for n in range(1000)]))
        (listed,) = (
            await embedding_pb2_grpc.EmbeddingsStub(channel).ListModels(embedding_pb2.ListModelsRequest())
        ).models
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Rank(pb.RankRequest(query="why " * 600, documents=DOCUMENTS))
    right = expected(tokenizer, QUERY, DOCUMENTS)
    best = sorted(right, key=lambda index: -right[index])[:3]
    assert [each.index for each in answer.results] == [*best, 2]
    assert found(answer) == {index: pytest.approx(right[index], abs=1e-6) for index in best}
    assert [each.token_count for each in answer.results[:3]] == [
        len(tokenizer.encode(QUERY, DOCUMENTS[index]).ids) for index in best
    ]
    assert (answer.request_id, answer.timings.inference.nanos > 0, bool(answer.batch_id)) == ("r", True, True)
    assert list(scored.results[0].scores) == [pytest.approx(right[4], abs=1e-6)]
    assert found(many) == pytest.approx(expected(tokenizer, QUERY, [f"number {n}" for n in range(1000)]), abs=1e-6)
    assert (listed.task, listed.dimensions) == ("rank", 1)
    assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_classifier_scores_texts_by_themselves(
    classifying: ModelServer, start_aggregator: StartAggregator, tokenizer: Tokenizer
) -> None:
    running = start_aggregator(classifying)
    async with grpc.aio.insecure_channel(running.process.address) as channel:
        answer = await pb_grpc.RankingStub(channel).Score(pb.ScoreRequest(pairs=[pb.Pair(text=QUERY)]))
        (listed,) = (
            await embedding_pb2_grpc.EmbeddingsStub(channel).ListModels(embedding_pb2.ListModelsRequest())
        ).models
    ids = np.array(tokenizer.encode(QUERY).ids, np.int32)
    right = scores(ids, np.array([ids.size]), len(answer.labels))
    assert list(answer.results[0].scores) == pytest.approx(right[0].tolist(), abs=1e-6)
    assert (listed.task, len(answer.labels)) == ("classify", listed.dimensions)


def start(start_aggregator: StartAggregator, server: ModelServer, name: str) -> Running:
    topics = Topics(f"{name}.requests", f"{name}.replies")
    topic: dict[str, Any] = {"name": topics.requests, "task": "rank", "reply_topic": topics.replies}
    return start_aggregator(server, topics=topics, settings={"KAFKA__TOPICS": json.dumps([topic])})


@pytest.mark.kafka
async def test_a_topic_of_rank_requests_is_answered_in_protobuf_and_json(
    ranking: ModelServer, start_aggregator: StartAggregator, tokenizer: Tokenizer
) -> None:
    running = start(start_aggregator, ranking, "rank-formats")
    message = pb.RankRequest(request_id="p", query=QUERY, documents=DOCUMENTS, return_documents=True)
    as_json = json.dumps({**json_format.MessageToDict(message), "requestId": "j"}).encode()
    async with open_kafka_client(running.kafka, running.topics) as client:
        sent = [Sent(message.SerializeToString()), Sent(as_json, (JSON,)), Sent(b"alone", (TEXT,))]
        await client.exchange(*sent)
        await client.until_committed(running.group)
    answers: dict[str, pb.RankResponse] = {}
    for reply in client.replies:
        value = reply.value or b""
        is_json = value.startswith(b"{")
        answer = json_format.Parse(value, pb.RankResponse()) if is_json else pb.RankResponse.FromString(value)
        answers["text" if "send a RankRequest" in answer.status.message else answer.request_id] = answer
    right = expected(tokenizer, QUERY, DOCUMENTS)
    assert answers.keys() == {"p", "j", "text"}
    for name in ("p", "j"):
        assert found(answers[name]) == pytest.approx(right, abs=1e-6)
        assert [each.document for each in answers[name].results] == [
            DOCUMENTS[each.index] for each in answers[name].results
        ]
        assert len(answers[name].reply_id) == 32
