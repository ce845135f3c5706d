"""Documents in chunks: one sequence each, a vector of each chunk, and one status for the document."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggregator.errors import Code, InvalidRequest
from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.calls import Call, call_of
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.encode import to_protobuf
from aggregator.sources.wire.message import parse
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline
from tests.support.virtual_time import in_virtual_time

SPANNED = replace(DESCRIPTION, pools_spans=True, normalizes=False)


def chunks(*texts: str) -> pb.Input:
    return pb.Input(chunks=pb.Chunks(texts=texts))


def spanned(ids: list[int], *spans: tuple[int, int]) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=ids), spans=[pb.Span(start=start, end=end) for start, end in spans])


async def answered(faked: FakedPipeline, *inputs: pb.Input, max_inputs: int = 8, **fields: Any) -> pb.EmbedResponse:
    load = faked._load.enter(("caller",))  # noqa: SLF001 - as the pipeline's own requests
    now_s = asyncio.get_running_loop().time()
    defaults = Defaults(faked.grpc, MODEL, Priority.INTERACTIVE, max_inputs=max_inputs)
    message = pb.EmbedRequest(inputs=inputs, **fields)
    request = parse(EMBEDDING, message, defaults, Call(load), received_s=now_s, wall_s=0.0)
    faked.grpc.batcher.add(request)
    await call_of(request).wait()
    return pb.EmbedResponse.FromString(to_protobuf(request, ""))


def sums(answer: pb.EmbedResponse) -> list[list[float]]:
    """Of each input, the first component of each chunk's vector, or of its own: the sum of ids."""
    return [
        [float(np.frombuffer(part.embedding, "<f4")[0]) for part in each.chunks or [each]]
        for each in answer.embeddings
        if not each.status.code
    ]


@pytest.mark.parametrize("encoding", [pb.ENCODING_FLOAT32, pb.ENCODING_INT8])
@in_virtual_time
async def test_the_chunks_of_a_document_are_one_sequence_each_with_its_vector(encoding: pb.Encoding) -> None:
    engine = FakeEngine(SPANNED)
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, chunks("10 20", "30"), pb.Input(text="40"), chunks("50"), encoding=encoding)
    document, text, single = answer.embeddings
    assert [len(each.chunks) for each in answer.embeddings] == [2, 0, 1]
    assert (document.token_count, text.token_count, single.token_count) == (5, 3, 3)
    assert (document.embedding, bool(text.embedding)) == (b"", True)
    assert all(each.scale for each in document.chunks) == (encoding == pb.ENCODING_INT8)
    if encoding == pb.ENCODING_FLOAT32:
        assert sums(answer) == [[30.0, 30.0], [43.0], [50.0]]
    [batch] = engine.batches
    assert np.frombuffer(batch.lengths, "<i4").tolist() == [5, 3, 3]
    assert np.frombuffer(batch.span_counts, "<i4").tolist() == [2, 0, 1]
    assert np.frombuffer(batch.spans, "<i4").tolist() == [1, 3, 3, 4, 1, 2]


@in_virtual_time
async def test_the_prompt_of_a_document_is_seen_and_belongs_to_no_chunk() -> None:
    engine = FakeEngine(replace(SPANNED, document_prompt="7 8 "))
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, chunks("10", "20"), input_type=pb.INPUT_TYPE_DOCUMENT)
    assert (sums(answer), answer.embeddings[0].token_count) == ([[10.0, 20.0]], 6)


@in_virtual_time
async def test_token_ids_come_with_the_spans_of_their_chunks() -> None:
    async with FakedPipeline(FakeEngine(SPANNED)).started() as faked:
        answer = await answered(faked, spanned([1, 5, 6, 7, 2], (0, 2), (3, 5)))
    assert sums(answer) == [[6.0, 9.0]]


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (chunks("10", ""), Code.INVALID_ARGUMENT, "chunk 1 is empty: leave it out"),
        (chunks("10", " "), Code.INVALID_ARGUMENT, "chunk 1 has no tokens"),
        (chunks("10 " * 200, "20 " * 60), Code.OUT_OF_RANGE, "the document has 262 tokens: test-model takes 32"),
        (spanned([1, 2], (0, 3)), Code.INVALID_ARGUMENT, "ends behind the 2 token ids"),
        (spanned([1, 2], (1, 1)), Code.INVALID_ARGUMENT, "span 0 is empty"),
        (spanned([1, 2], (0, 2), (1, 2)), Code.INVALID_ARGUMENT, "begins before the one in front of it ends"),
        (pb.Input(text="10", spans=[pb.Span(end=1)]), Code.INVALID_ARGUMENT, "behind the 0 token ids"),
    ],
)
@in_virtual_time
async def test_a_document_at_fault_fails_by_itself(given: pb.Input, code: Code, says: str) -> None:
    async with FakedPipeline(FakeEngine(SPANNED)).started() as faked:
        answer = await answered(faked, given, pb.Input(text="10"), truncate=pb.TRUNCATE_END)
    failed, good = answer.embeddings
    assert (failed.status.code, good.status.code) == (code, 0)
    assert says in failed.status.message


@in_virtual_time
async def test_a_model_that_pools_no_spans_refuses_with_what_it_takes() -> None:
    async with FakedPipeline(FakeEngine(replace(SPANNED, pools_spans=False))).started() as faked:
        answer = await answered(faked, chunks("10", "20"))
    assert answer.status.code == Code.INVALID_ARGUMENT
    assert "a document in chunks takes a model that pools by the mean" in answer.status.message


@in_virtual_time
async def test_every_chunk_counts_as_an_input() -> None:
    async with FakedPipeline(FakeEngine(SPANNED)).started() as faked:
        with pytest.raises(InvalidRequest, match="9 inputs and chunks: at most 8 are taken"):
            await answered(faked, chunks(*"12345678"), pb.Input(text="9"))


@in_virtual_time
async def test_equal_documents_share_a_sequence_those_in_other_chunks_do_not() -> None:
    engine = FakeEngine(SPANNED)
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, chunks("10 20", "30"), chunks("10", "20 30"), chunks("10 20", "30"))
    assert sums(answer) == [[30.0, 30.0], [10.0, 50.0], [30.0, 30.0]]
    assert engine.queries == 2


@in_virtual_time
async def test_a_batch_holds_no_more_vectors_than_a_server_answers() -> None:
    engine = FakeEngine(replace(SPANNED, step_query_capacity=4))
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, *(chunks("10", str(index), "30") for index in (20, 21)), pb.Input(text="40"))
    assert len(sums(answer)) == 3
    assert [batch.row_count for batch in engine.batches] == [4, 3]
