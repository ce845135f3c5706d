"""Fuzz what goes between gRPC's parties: a call's metadata and message, a model server's answers, its batches."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import cast

import numpy as np
from google.protobuf.message import DecodeError
from typing_extensions import override

from aggregator.admission.ledger import Ledger
from aggregator.errors import Code, InvalidRequest, ModelServerLost, TokenbatchError
from aggregator.model_server import OutgoingBatch, differences
from aggregator.observability.metrics import Metrics
from aggregator.registry import KINDS
from aggregator.replicas.answers import BadDescription, checked_description, checked_result
from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.callers import Authentication, Callers
from aggregator.sources.calls.calls import Call, CallBatcher, call_of
from aggregator.sources.calls.load import Limits, Load, Room
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.grpc.reading import Context, GrpcCalls, Reading, read_embed, refusal
from aggregator.sources.wire.decode import SMALL_BYTES, decode_embed, head
from aggregator.sources.wire.encode import response
from k8s.pod.metrics_buffer import MetricsBuffer
from modelserver.engines.engine import Activation, Scoring
from modelserver.engines.synthetic import synthetic_facts
from modelserver.errors import InvalidBatch
from modelserver.service import batch as batch_module
from modelserver.service.batch import broken_rows
from protos.embedding.v1 import embedding_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2 as ms
from tests.fuzz.aggregator.wings.authentication.credential_targets import known_callers
from tests.fuzz.target import Cut, Target
from tests.support.fake_engine import description
from tests.support.fake_source import GRPC

_CERTIFICATE = ("x509_common_name", "peer_spiffe_id", "peer_dns")
_METADATA = ("x-tenant", "traceparent", "authorization", "x-gateway-inference-objective")
_FACTS = replace(
    synthetic_facts(dimensions=2, max_input_tokens=20, vocabulary_size=1000, step_tokens=100, step_queries=10),
    scoring=Scoring(("no", "yes"), Activation.SOFTMAX, token_types=True),
)
_BATCH = OutgoingBatch("b", b"", b"", 3, 30, 1, isolate=False, max_step_tokens=100)
_TWO = description(dimensions=2)


class _Batcher(CallBatcher):
    """Fails every call."""

    @override
    def add(self, call: Request) -> None:
        call.fail(Failure(Code.INTERNAL, "it broke"))
        call_of(call).complete(call)


def _give_up(request: Request) -> None:
    raise AssertionError(f"{request.request_id} was given up.")


def _calls(known: Authentication | None) -> GrpcCalls:
    defaults = Defaults(GRPC, "m", Priority.INTERACTIVE, max_inputs=4)
    load = Load(
        Limits(max_calls=2, max_streams=1),
        Metrics(MetricsBuffer()),
        lambda: 0.5,
        ledger=Ledger(1_000_000, intake_share=0.0),
    )
    return GrpcCalls(
        _Batcher(lambda now_s: now_s),
        _give_up,
        Callers(defaults, known, traced=True),
        load,
        reading=Reading(1, load),
        clock=lambda: 0.0,
        wall_clock=lambda: 1.7e9,
    )


_MAX_INPUTS = 3
_FILLER = pb.EmbedRequest(tenant="t" * SMALL_BYTES).SerializeToString()
_CALLS = [
    _calls(None),
    _calls(known_callers()),
]
"""Of a port where anybody may call, and of others."""


def _context(metadata: Iterable[tuple[str, str | bytes]], certificate: Mapping[str, Iterable[bytes]]) -> Context:
    told = tuple(metadata)
    context = SimpleNamespace(
        invocation_metadata=lambda: told, auth_context=lambda: certificate, peer=lambda: "ipv4:192.0.2.1:5"
    )
    return cast("Context", context)


def check_call(data: bytes) -> None:
    """Whether anybody may call and the kind of a certificate's name, up to 7 metadata, that name, then the message."""
    cut = Cut(data)
    kind = cut.byte()
    calls, certificate = _CALLS[kind % len(_CALLS)], _CERTIFICATE[kind // 2 % 3]
    metadata: list[tuple[str, str | bytes]] = []
    for _ in range(cut.byte() % 8):
        kind, content = cut.byte(), cut.field()
        metadata.append((_METADATA[kind % 4], content if kind & 4 else content.decode("latin-1")))
    name = cut.field()
    asyncio.run(_serve(calls, _context(metadata, {certificate: [name]} if name else {}), cut.rest()))
    assert (calls.load.calls.total, calls.load.ledger.callers.total) == (0, 0), "What a call held was not given back."


async def _serve(calls: GrpcCalls, context: Context, data: bytes) -> None:
    """As the service does, once the message has come."""
    room: Room | None = None
    try:
        identity = calls.identify(context)
        room = calls.load.enter(identity.holders)
        room.widen(len(data))
        taken = await calls.take_large(EMBEDDING, data, identity, inf, room, partial(read_embed, Call(room)))
        await calls.embed(taken)
        response(taken, taken.request_id)
    except TokenbatchError as error:
        refusal(data, Failure.of(error))
    finally:
        if room is not None:
            room.leave()


def check_scan(data: bytes) -> None:
    """A message, put behind so much that it is walked over before it is parsed."""
    whole = _FILLER + data
    try:
        message = decode_embed(whole, _MAX_INPUTS)
    except InvalidRequest:
        head(whole)
        return
    assert len(message.inputs) <= _MAX_INPUTS, "More inputs than are taken."
    assert sum(len(each.token_ids.ids) for each in message.inputs) <= len(data)
    assert sum(max(1, len(each.chunks.texts)) for each in message.inputs) <= 4 * _MAX_INPUTS + 64, (
        "More chunks than taken."
    )


def check_answer(data: bytes) -> None:
    """A batch's answer, of three queries in two dimensions."""
    try:
        result = checked_result(_BATCH, _TWO, ms.EmbedBatchResponse.FromString(data))
    except (DecodeError, ModelServerLost):
        return
    assert result.matrix.shape == (3, 2), "The vectors are not one for each query."
    assert np.isfinite(result.matrix).all(), "A vector is not finite."
    assert all(0 <= index < 3 and Code(code) for index, code, _ in result.errors), "An error is nobody's."
    assert all(math.isfinite(each) for each in (result.report.step_duration_s, result.report.idle_before_s))


def check_description(data: bytes) -> None:
    """What a model server says of itself."""
    try:
        described = checked_description("here:1", ms.DescribeResponse.FromString(data), KINDS)
    except (DecodeError, BadDescription):
        return
    assert min(described.dimensions, described.max_input_tokens, described.vocabulary_size) > 0
    assert not differences(described, described), "It differs from itself."
    if described.curve is not None:
        assert described.curve.time_s(1000) >= 0, "A step would take no time that there is."
        described.curve.throughput(described.curve.saturation_point)


def check_batch(data: bytes) -> None:
    """Two flags, the lengths, second segments, span counts and spans behind their numbers of bytes, the token ids."""
    cut = Cut(data)
    isolated, budget = bool(cut.byte() % 2), cut.byte()
    lengths, second, counts, spans = cut.field(), cut.field(), cut.field(), cut.field()
    try:
        batch = batch_module.decode_batch(
            cut.rest(), lengths, second, counts, spans, isolated=isolated, max_step_tokens=budget, facts=_FACTS
        )
    except InvalidBatch:
        return
    assert batch.token_count == int(batch.lengths.sum()) <= 100, "More tokens than a step holds."
    assert batch.lengths.size + len(batch.faults) == batch.query_count <= 10, "A query is missing."
    assert not batch.token_count or (batch.token_ids.min() >= 0 and batch.token_ids.max() < 1000)
    if batch.spans is not None:
        places, _ = batch.spans.tokens(batch.lengths)
        assert places.size <= batch.token_count, "Tokens are pooled twice."
    matrix = np.full((batch.row_count, 2), budget, np.float32)
    if isolated and batch.lengths.size:
        matrix[0] = np.nan
    answer, faults = batch_module.encode(batch, matrix, broken_rows(matrix, zeros=True))
    assert len(answer) == batch.sent_row_count * 8
    assert np.isfinite(np.frombuffer(answer, "<f4")).all(), "A vector is not finite."
    assert len({fault.index for fault in faults}) == len(faults), "A query has two faults."


TARGETS = (
    Target("grpc_call", check_call),
    Target("grpc_message", check_scan),
    Target("modelserver_answer", check_answer),
    Target("modelserver_description", check_description),
    Target("modelserver_batch", check_batch),
)
