"""Test an installation, for `helm test`: ask for vectors, scores or a short text by gRPC, HTTP and through Kafka."""

from __future__ import annotations

import argparse
import asyncio
import base64
import math
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from google.protobuf.message import Message

from aggregator.settings.aggregator import ENV_PREFIX, AggregatorSettings, KafkaSettings, TopicSettings
from aggregator.sources.kafka.connection import client_options
from k8s.kube.client import connect
from k8s.kube.external_metrics import GROUP, PATH, VERSION, holder
from k8s.kube.objects import KubernetesError
from k8s.pod.errors import StartError
from k8s.pod.help import add_config
from k8s.pod.settings import load
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.generation.v1 import generation_pb2 as texts
from protos.generation.v1.generation_pb2_grpc import GenerationStub
from protos.ranking.v1 import ranking_pb2 as scores
from protos.ranking.v1.ranking_pb2_grpc import RankingStub
from protos.token_vectors.v1 import token_vectors_pb2 as rows
from protos.token_vectors.v1.token_vectors_pb2_grpc import TokenVectorsStub

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

QUESTION = "how far away is the moon"
NEAR = "what is the distance from the earth to the moon"
FAR = "who wrote the first symphony"
SENTENCES = [QUESTION, NEAR, FAR]
PURPOSE = "test an installation, for `helm test`: every model by gRPC and HTTP, every topic, every metric"
_NORM_TOLERANCE = 0.02  # bfloat16 has two to three significant digits
_RETRY_S = 1.0  # pods start
_TEXT_TOKENS = 8  # more than one step
_TOKENS = frozenset({"multi_vector", "sparse"})
"""The tasks, as models are listed, that give a vector or a weight of each token."""

Vector = npt.NDArray[np.float32]


class Failed(Exception):
    """The installation does not work as it should."""


async def by_grpc(target: str, model: str, deadline_s: float) -> str:
    """Embed three sentences, score two pairs, generate a text: one call for each task. Raises Failed."""
    left_s = max(1.0, deadline_s - time.monotonic())
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = pb_grpc.EmbeddingsStub(channel)
        try:
            listed = await stub.ListModels(pb.ListModelsRequest(), timeout=left_s, wait_for_ready=True)
            tasks = {each.task for each in listed.models if model in {each.name, *each.aliases}}
            found: list[str] = []
            if "generate" in tasks:
                found.append(_judged_text(await _text(channel, model, left_s), model))
            if tasks & {"rank", "classify"}:
                found.append(_judged_scores(await RankingStub(channel).Score(_pairs(model), timeout=left_s), model))
            if tasks & _TOKENS:
                vectors = await TokenVectorsStub(channel).EmbedTokens(_sentences(model=model), timeout=left_s)
                found.append(_judged_rows(vectors, model))
            if not tasks or "embed" in tasks:  # without a server it waits for one
                sentences = await stub.Embed(_sentences(model=model), timeout=left_s, wait_for_ready=True)
                found.append(_judged_response(sentences, model))
        except grpc.aio.AioRpcError as error:
            raise Failed(f"gRPC {target}: {error.code().name}: {error.details()}") from error
    return f"gRPC {target}: {'; '.join(found)}"


async def by_http(target: str, model: str, deadline_s: float) -> str:
    """The same by OpenAI's API; the result in words. Raises Failed."""
    timeout = aiohttp.ClientTimeout(max(1.0, deadline_s - time.monotonic()))
    found: list[str] = []
    try:
        async with aiohttp.ClientSession(f"http://{target}", timeout=timeout) as session:
            listed = await _json(session.get("/v1/models"))
            shown = (each for each in listed["data"] if model in {each["id"], *each["aliases"]})
            tasks = {task for each in shown for task in each["tasks"]}
            if "generate" in tasks:
                asked = {"model": model, "prompt": QUESTION, "max_tokens": _TEXT_TOKENS, "temperature": 0.0}
                text = await _json(session.post("/v1/completions", json={**asked, "ignore_eos": True}))
                found.append(_judged_tokens(text["usage"]["completion_tokens"], model))
            if "rank" in tasks:
                asked = {"model": model, "query": QUESTION, "documents": [NEAR, FAR]}
                ranking = await _json(session.post("/v1/rerank", json=asked))
                found.append(_judged_ranking([each["relevance_score"] for each in ranking["results"]], model))
            if tasks & _TOKENS:
                pooled = await _json(session.post("/pooling", json={"model": model, "input": SENTENCES}))
                counts = [len(each["data"] if "data" in each else each["values"]) for each in pooled["data"]]
                found.append(_judged_counts(counts, model))
            if not tasks or "embed" in tasks:
                asked = {"model": model, "input": SENTENCES, "normalize": True, "encoding_format": "base64"}
                answer = await _json(session.post("/v1/embeddings", json=asked))
                found.append(_judged([base64.b64decode(each["embedding"]) for each in answer["data"]], model))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Failed(f"HTTP {target}: {error!r}") from error
    return f"HTTP {target}: {'; '.join(found)}"


async def _json(asking: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> Any:
    async with asking as response:
        if not response.ok:
            raise Failed(f"HTTP {response.url}: {response.status}: {await response.text()}")
        return await response.json()


def _sentences(**fields: str) -> pb.EmbedRequest:
    inputs = [pb.Input(text=text) for text in SENTENCES]
    return pb.EmbedRequest(inputs=inputs, normalize=True, **fields)  # type: ignore[arg-type]


def _question(**fields: str) -> texts.GenerateRequest:
    sampling = texts.Sampling(max_tokens=_TEXT_TOKENS, temperature=0.0, ignore_eos=True)
    return texts.GenerateRequest(prompt=QUESTION, sampling=sampling, final_only=True, **fields)  # type: ignore[arg-type]


def _pairs(model: str) -> scores.ScoreRequest:
    return scores.ScoreRequest(
        model=model, pairs=[scores.Pair(text=QUESTION, second_text=text) for text in (NEAR, FAR)]
    )


def _judged_scores(answer: scores.ScoreResponse, model: str) -> str:
    """The result in words. Raises Failed unless each pair has its finite scores."""
    if answer.status.code:
        raise Failed(f"{model}: code {answer.status.code}: {answer.status.message}")
    near, far = (list(each.scores) for each in answer.results)
    if not near or not all(map(math.isfinite, (*near, *far))):
        raise Failed(f"{model}: the scores are {near} and {far}")
    return f"{model}: {len(near)} scores of a pair"


def _judged_ranking(found: Sequence[float], model: str) -> str:
    """The result in words. Raises Failed unless each document has its finite score."""
    if len(found) != 2 or not all(map(math.isfinite, found)):  # noqa: PLR2004 - the two documents
        raise Failed(f"{model}: the scores are {found}")
    return f"{model}: {len(found)} documents in order"


def _judged_rows(answer: rows.EmbedTokensResponse, model: str) -> str:
    """The result in words. Raises Failed unless each sentence has vectors of its tokens, or weights."""
    if answer.status.code:
        raise Failed(f"{model}: code {answer.status.code}: {answer.status.message}")
    counts = [
        len(each.embeddings) // (4 * each.dimensions) if each.dimensions else len(each.weights)
        for each in answer.inputs
    ]
    return _judged_counts(counts, f"{model} {answer.model_revision}")


def _judged_counts(counts: Sequence[int], model: str) -> str:
    if len(counts) != len(SENTENCES) or not all(counts):
        raise Failed(f"{model}: the numbers of vectors, or weights, of tokens are {counts}")
    return f"{model}: {sum(counts)} vectors, or weights, of tokens"


async def _text(channel: grpc.aio.Channel, model: str, timeout_s: float) -> texts.GenerateResponse:
    answer = texts.GenerateResponse()
    async for response in GenerationStub(channel).Generate(_question(model=model), timeout=timeout_s):
        answer = response
    return answer


async def by_kafka(kafka: KafkaSettings, topic: TopicSettings, deadline_s: float) -> str:
    """Send the same to a topic and wait for the reply; the result in words. Raises Failed."""
    request_id = f"smoke-{secrets.token_hex(8)}"
    reply_topic = kafka.replies_of(topic)
    request: Message = _sentences(request_id=request_id)
    if topic.task == "generate":
        request = _question(request_id=request_id)
    elif topic.task == "rank":
        request = scores.RankRequest(request_id=request_id, query=QUESTION, documents=[NEAR, FAR])
    options = client_options(kafka)
    consumer = AIOKafkaConsumer(**options, enable_auto_commit=False)
    producer = AIOKafkaProducer(**options, acks="all")
    try:
        async with asyncio.timeout(max(1.0, deadline_s - time.monotonic())):
            await consumer.start()
            await producer.start()
            await _at_the_end(consumer, reply_topic)
            await producer.send_and_wait(topic.name, request.SerializeToString(), key=request_id.encode())
            reply = await _reply(consumer, request_id)
    except (KafkaError, TimeoutError, OSError) as error:
        raise Failed(f"Kafka {kafka.bootstrap_servers}, topic {topic.name}: {error!r}") from error
    finally:
        await producer.stop()
        await consumer.stop()
    if topic.task == "rank":
        ranking = scores.RankResponse.FromString(reply)
        if ranking.status.code:
            raise Failed(f"{ranking.model}: code {ranking.status.code}: {ranking.status.message}")
        return f"Kafka {topic.name} to {reply_topic}: {ranking.model}: {len(ranking.results)} documents in order"
    if topic.task == "generate":
        text = texts.GenerateResponse.FromString(reply)
        return f"Kafka {topic.name} to {reply_topic}: {_judged_text(text, text.model)}"
    if topic.task == "token_vectors":
        vectors = rows.EmbedTokensResponse.FromString(reply)
        return f"Kafka {topic.name} to {reply_topic}: {_judged_rows(vectors, vectors.model)}"
    answer = pb.EmbedResponse.FromString(reply)
    return f"Kafka {topic.name} to {reply_topic}: {_judged_response(answer, answer.model)}"


async def _at_the_end(consumer: Any, topic: str) -> None:
    while not (numbers := consumer.partitions_for_topic(topic)):
        await consumer._client.add_topic(topic)  # noqa: SLF001 - a consumer without a group learns of no topic by itself
        await asyncio.sleep(0.1)
    partitions = [TopicPartition(topic, number) for number in numbers]
    consumer.assign(partitions)
    await consumer.seek_to_end(*partitions)
    for partition in partitions:
        await consumer.position(partition)


async def _reply(consumer: Any, request_id: str) -> bytes:
    async for record in consumer:
        if record.key == request_id.encode():
            return bytes(record.value)
    raise Failed("the reply topic ended. This is a bug.")


def _judged_response(answer: pb.EmbedResponse, model: str) -> str:
    if answer.status.code:
        raise Failed(f"{model}: code {answer.status.code}: {answer.status.message}")
    return _judged([each.embedding for each in answer.embeddings], f"{model} {answer.model_revision}")


def _judged(vectors: Sequence[bytes], model: str) -> str:
    """The result in words. Raises Failed unless similar sentences have similar vectors."""
    question, near, far = (np.frombuffer(each, "<f4") for each in vectors)
    norms = [float(np.linalg.norm(vector)) for vector in (question, near, far)]
    if any(not math.isclose(norm, 1.0, abs_tol=_NORM_TOLERANCE) for norm in norms):
        raise Failed(f"{model}: the vectors' lengths are {norms}, not 1")
    like, unlike = float(question @ near), float(question @ far)
    if not like > unlike:
        raise Failed(f"{model}: unrelated sentences are more similar ({unlike:.2f}) than related ones ({like:.2f})")
    return f"{model}: {question.size} dimensions, alike {like:.2f}, unlike {unlike:.2f}"


def _judged_text(answer: texts.GenerateResponse, model: str) -> str:
    """The result in words. Raises Failed if the text does not have the requested length."""
    if answer.status.code:
        raise Failed(f"{model}: code {answer.status.code}: {answer.status.message}")
    return _judged_tokens(answer.usage.completion_tokens, f"{model} {answer.model_revision}")


def _judged_tokens(tokens: int, model: str) -> str:
    if tokens != _TEXT_TOKENS:
        raise Failed(f"{model}: a text of {tokens} tokens, not {_TEXT_TOKENS}")
    return f"{model}: a text of {_TEXT_TOKENS} tokens"


async def by_metric(kubernetes: Kubernetes, metric: str) -> str:
    """Ask for NAMESPACE/METRIC?SELECTOR as the autoscaler does; the result in words. Raises Failed."""
    where, _, selector = metric.partition("?")
    namespace, name = where.split("/")
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{name}?labelSelector={quote(selector)}"
    try:
        found = (await kubernetes.get(path)).get("items") or ()
    except KubernetesError as error:
        raise Failed(f"metric {metric}: {error}; {await _served_by(kubernetes)}") from error
    if not found:
        raise Failed(f"metric {metric} has no series; {await _served_by(kubernetes)}")
    return f"metric {metric}: {', '.join(each['value'] for each in found)}"


async def _served_by(kubernetes: Kubernetes) -> str:
    """The server of the cluster's external metrics API, in words."""
    try:
        it = holder(await kubernetes.get(PATH))
    except KubernetesError as error:
        return f"who serves the external metrics API is not known: {error}"
    other = "" if it.is_scaler else ", which is not a scaler of tokenbatch"
    return f"the external metrics API is served by {it.service}{other}"


async def _until(attempt: Callable[[], Coroutine[Any, Any, str]], deadline_s: float) -> str:
    """Try until the deadline: a new installation may still be starting."""
    while True:
        try:
            return await attempt()
        except Failed:
            if time.monotonic() + _RETRY_S >= deadline_s:
                raise
            await asyncio.sleep(_RETRY_S)


async def prove(
    settings: AggregatorSettings,
    target: str | None,
    timeout_s: float,
    metrics: Sequence[str] = (),
    kubernetes: Callable[[], Kubernetes] = connect,
    *,
    http: str | None = None,
) -> list[str]:
    """Every model by gRPC and HTTP, every topic, every metric; the results in words. Raises Failed, StartError."""
    deadline_s = time.monotonic() + timeout_s
    found: list[str] = []
    for address, by in ((target, by_grpc), (http, by_http)):
        if address is not None:
            found += [
                await _until(partial(by, address, model.name, deadline_s), deadline_s) for model in settings.models
            ]
    if settings.kafka.enabled:
        found += [await by_kafka(settings.kafka, topic, deadline_s) for topic in settings.kafka.topics]
    if metrics:
        asked = kubernetes()
        try:
            found += [await _until(partial(by_metric, asked, metric), deadline_s) for metric in metrics]
        finally:
            await asked.close()
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "the aggregator's settings as YAML")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="an aggregator's gRPC port; without it not by gRPC")
    parser.add_argument("--http", metavar="HOST:PORT", help="an aggregator's HTTP port; without it not over HTTP")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAMESPACE/METRIC?SELECTOR",
        help="an external metric, as the autoscaler asks for it; may be repeated",
    )
    parser.add_argument("--timeout-s", type=float, default=120.0, metavar="S", help="for all of it (%(default)s)")


def run(options: argparse.Namespace, settings_type: type[AggregatorSettings]) -> int:
    """The exit code: 0, or 1 with the reason on standard error."""
    try:
        settings = load(settings_type, ENV_PREFIX, options.config)
        found = asyncio.run(prove(settings, options.grpc, options.timeout_s, options.metric, http=options.http))
    except (Failed, StartError) as error:
        sys.stderr.write(f"failed: {error}\n")
        return 1
    sys.stdout.write("".join(f"well: {line}\n" for line in found))
    return 0
