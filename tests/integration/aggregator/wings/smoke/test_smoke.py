"""`helm test` tells an installation that works from one that only answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import numpy as np
import pytest
from aiohttp import web
from typing_extensions import override

from aggregator.settings.aggregator import AggregatorSettings, KafkaSettings, ModelSettings
from aggregator.wings.smoke import command as smoke
from aggregator.wings.smoke.command import Failed, prove
from k8s.kube.external_metrics import PATH
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.generation.v1.generation_pb2 import GenerateRequest, GenerateResponse, Usage
from protos.generation.v1.generation_pb2_grpc import GenerationServicer, add_GenerationServicer_to_server
from protos.ranking.v1 import ranking_pb2 as pb_scores
from protos.ranking.v1.ranking_pb2 import RankRequest, RankResponse, ScoreRequest, ScoreResponse
from protos.ranking.v1.ranking_pb2_grpc import RankingServicer, add_RankingServicer_to_server
from protos.token_vectors.v1 import token_vectors_pb2 as pb_tokens
from protos.token_vectors.v1.token_vectors_pb2_grpc import (
    TokenVectorsServicer,
    add_TokenVectorsServicer_to_server,
)
from tests.support.fake_kubernetes import FakeKubernetesApi

SETTINGS = AggregatorSettings(
    kafka=KafkaSettings(enabled=False), models=(ModelSettings(name="m", servers=("unused:1",)),)
)
SENSE = ([1.0, 0.0], [0.8, 0.6], [0.0, 1.0])


def answer(*vectors: list[float], code: int = 0) -> pb.EmbedResponse:
    embeddings = [pb.Embedding(embedding=np.array(vector, "<f4").tobytes()) for vector in vectors]
    return pb.EmbedResponse(model_revision="r1", embeddings=embeddings, status=pb.Status(code=code, message="why"))


class Embeddings(pb_grpc.EmbeddingsServicer):
    """Answers what it is told to, but the first `refused` calls."""

    task = "embed"

    def __init__(self, make: Callable[[], pb.EmbedResponse], refused: int = 0) -> None:
        self._make = make
        self._refused = refused
        self.asked: list[pb.EmbedRequest] = []

    @override
    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        self.asked.append(request)
        if len(self.asked) <= self._refused:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no server of m is available")
        return self._make()

    @override
    def EmbedStream(self, request_iterator: Any, context: Any) -> Any:
        raise NotImplementedError

    @override
    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[pb.Model(name="m", task=task) for task in self.task.split()])


class Texts(GenerationServicer):
    """A text of so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    @override
    async def Generate(self, request: GenerateRequest, context: Any) -> AsyncIterator[GenerateResponse]:
        assert request.model == "m"
        yield GenerateResponse(model_revision="r1", usage=Usage(completion_tokens=self._tokens))


class Scores(RankingServicer):
    """These scores for each pair."""

    def __init__(self, *scores: float) -> None:
        self._scores = scores

    @override
    async def Rank(self, request: RankRequest, context: Any) -> RankResponse:
        raise NotImplementedError

    @override
    async def Score(self, request: ScoreRequest, context: Any) -> ScoreResponse:
        assert request.model == "m"
        return ScoreResponse(model_revision="r1", results=[pb_scores.Scores(scores=self._scores)] * len(request.pairs))


class Tokens(TokenVectorsServicer):
    """These for each input."""

    def __init__(self, *given: pb_tokens.Tokens) -> None:
        self._given = given

    @override
    async def EmbedTokens(self, request: pb.EmbedRequest, context: Any) -> pb_tokens.EmbedTokensResponse:
        assert (request.model, len(request.inputs)) == ("m", 3)
        return pb_tokens.EmbedTokensResponse(model_revision="r1", inputs=self._given)


@asynccontextmanager
async def serving(
    service: Embeddings, texts: Texts | Scores | Tokens | None = None, task: str = "generate"
) -> AsyncGenerator[str]:
    server = grpc.aio.server()
    pb_grpc.add_EmbeddingsServicer_to_server(service, server)
    if texts is not None:
        service.task = task
    if isinstance(texts, Texts):
        add_GenerationServicer_to_server(texts, server)
    elif isinstance(texts, Scores):
        add_RankingServicer_to_server(texts, server)
    elif isinstance(texts, Tokens):
        add_TokenVectorsServicer_to_server(texts, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_a_model_of_both_tasks_is_to_do_both() -> None:
    async with serving(Embeddings(lambda: answer(*SENSE)), Texts(8), "embed generate") as target:
        (line,) = await prove(SETTINGS, target, 30.0)
    assert line == f"gRPC {target}: m r1: a text of 8 tokens; m r1: 2 dimensions, alike 0.80, unlike 0.00"


async def test_a_model_that_ranks_is_to_score_pairs() -> None:
    embeddings = Embeddings(lambda: answer(*SENSE))
    async with serving(embeddings, Scores(0.5), "rank") as target:
        (line,) = await prove(SETTINGS, target, 30.0)
    assert (line, embeddings.asked) == (f"gRPC {target}: m: 1 scores of a pair", [])


async def test_scores_that_are_missing_or_not_finite_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_RETRY_S", 30.0)
    for scores in ((), (float("nan"), 0.5)):
        async with serving(Embeddings(lambda: answer(*SENSE)), Scores(*scores), "classify") as target:
            with pytest.raises(Failed, match="m: the scores are"):
                await prove(SETTINGS, target, 30.0)


TWO_ROWS = pb_tokens.Tokens(embeddings=bytes(16), dimensions=2)


@pytest.mark.parametrize(
    ("task", "given", "said"),
    [
        ("multi_vector", TWO_ROWS, "6 vectors, or weights, of tokens"),
        ("sparse", pb_tokens.Tokens(ids=[7], weights=[0.5]), "3 vectors, or weights, of tokens"),
    ],
)
async def test_a_model_of_a_vector_a_token_is_to_give_some(task: str, given: pb_tokens.Tokens, said: str) -> None:
    async with serving(Embeddings(lambda: answer(*SENSE)), Tokens(*[given] * 3), task) as target:
        (line,) = await prove(SETTINGS, target, 30.0)
    assert line == f"gRPC {target}: m r1: {said}"


async def test_a_text_without_a_vector_of_a_token_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_RETRY_S", 30.0)
    given = Tokens(TWO_ROWS, pb_tokens.Tokens(), TWO_ROWS)
    async with serving(Embeddings(lambda: answer(*SENSE)), given, "multi_vector") as target:
        with pytest.raises(Failed, match=r"of tokens are \[2, 0, 2\]"):
            await prove(SETTINGS, target, 30.0)


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (answer(SENSE[0], SENSE[2], SENSE[1]), "unrelated sentences are more similar"),
        (answer([2.0, 0.0], *SENSE[1:]), "the vectors' lengths are"),
        (answer(code=14), "code 14: why"),
    ],
)
async def test_what_is_wrong_fails_and_says_how(
    response: pb.EmbedResponse, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "_RETRY_S", 30.0)
    async with serving(Embeddings(lambda: response)) as target:
        with pytest.raises(Failed, match=says):
            await prove(SETTINGS, target, 30.0)


async def test_what_was_installed_a_moment_ago_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_RETRY_S", 0.01)
    service = Embeddings(lambda: answer(*SENSE), refused=2)
    async with serving(service) as target:
        assert await prove(SETTINGS, target, 30.0)
    assert len(service.asked) == 3


@asynccontextmanager
async def serving_http(answers: dict[str, tuple[int, object]]) -> AsyncGenerator[str]:
    async def serve(http: web.BaseRequest) -> web.StreamResponse:
        status, body = answers[http.path]
        return web.json_response(body, status=status)

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def models(*tasks: str) -> tuple[int, object]:
    return 200, {"data": [{"id": "m", "aliases": [], "tasks": tasks}]}


async def test_what_http_refuses_fails_and_says_how() -> None:
    async with serving_http({"/v1/models": models("embed"), "/v1/embeddings": (503, {"error": "why"})}) as target:
        with pytest.raises(Failed, match=r"/v1/embeddings: 503: .*why"):
            await prove(SETTINGS, None, 0.2, http=target)
    with pytest.raises(Failed, match=f"HTTP {target}: ClientConnectorError"):
        await prove(SETTINGS, None, 0.2, http=target)


ROWS = {"data": [{"data": [[0.5], [0.5]]}] * 3}
WEIGHTS = {"data": [{"values": [0.5], "indices": [7]}] * 3}


@pytest.mark.parametrize(
    ("task", "path", "body", "said"),
    [
        ("multi_vector", "/pooling", ROWS, "6 vectors, or weights, of tokens"),
        ("sparse", "/pooling", WEIGHTS, "3 vectors, or weights, of tokens"),
        ("rank", "/v1/rerank", {"results": [{"relevance_score": 0.5}] * 2}, "2 documents in order"),
    ],
)
async def test_every_task_is_asked_for_over_http(task: str, path: str, body: object, said: str) -> None:
    async with serving_http({"/v1/models": models(task), path: (200, body)}) as target:
        assert await prove(SETTINGS, None, 30.0, http=target) == [f"HTTP {target}: m: {said}"]


SERIES = "ns/tokenbatch_required_replicas?model=m,scaler=s"
ASKED = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/tokenbatch_required_replicas"


async def test_a_metric_that_nobody_gives_fails_and_says_whose_the_api_is() -> None:
    fake = FakeKubernetesApi()
    async with fake.started():
        with pytest.raises(Failed, match="who serves the external metrics API is not known: 404"):
            await prove(SETTINGS, None, 0.2, [SERIES], fake.client)
        fake.put(PATH, {"spec": {"service": {"namespace": "keda", "name": "metrics"}}})
        with pytest.raises(Failed, match="served by keda/metrics, which is not a scaler of tokenbatch"):
            await prove(SETTINGS, None, 0.2, [SERIES], fake.client)
        fake.put(ASKED, {"items": []})
        with pytest.raises(Failed, match="has no series"):
            await prove(SETTINGS, None, 0.2, [SERIES], fake.client)
