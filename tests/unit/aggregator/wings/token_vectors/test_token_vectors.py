"""A vector of each token, or weights of tokens: sequences by the model's rules, a row a token, one answer a text."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggregator.errors import Code
from aggregator.model_server import differences
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.calls.calls import Call, call_of
from aggregator.sources.wire.message import parse
from aggregator.wings.token_vectors.kind import TOKEN_VECTORS
from aggregator.wings.token_vectors.rules import Rules, Side
from aggregator.wings.token_vectors.wire import response
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.modelserver.v1 import modelserver_pb2
from protos.token_vectors.v1 import token_vectors_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline
from tests.support.virtual_time import in_virtual_time

QUERY, DOCUMENT = embedding.INPUT_TYPE_QUERY, embedding.INPUT_TYPE_DOCUMENT
SAID = modelserver_pb2.TokenVectors(
    query_prefix=[70],
    document_prefix=[71],
    document_tokens=8,
    query_tokens=9,
    expansion_id=99,
    expansion_tokens=7,
    left_out_ids=[13],
    left_out_of_documents=True,
)
MULTI = replace(
    DESCRIPTION,
    matryoshka_dimensions=frozenset(),
    pools_spans=True,
    query_prompt="5 ",
    document_prompt="",
    details=Rules.of(SAID),
)
SPARSE = replace(
    MULTI,
    dimensions=1,
    query_prompt="",
    details=Rules.of(modelserver_pb2.TokenVectors(weights=True, left_out_ids=[1, 2])),
)
"""Its engine's weight of a token is the token's id: special tokens, 1 and 2, are left out."""


def requested(faked: FakedPipeline, message: embedding.EmbedRequest) -> Request:
    load = faked._load.enter(("caller",))  # noqa: SLF001 - as the pipeline's own requests
    now_s = asyncio.get_running_loop().time()
    defaults = Defaults(faked.grpc, MODEL, Priority.INTERACTIVE)
    return parse(TOKEN_VECTORS, message, defaults, Call(load), received_s=now_s, wall_s=0.0)


async def answered(faked: FakedPipeline, *inputs: str | list[int], **fields: Any) -> pb.EmbedTokensResponse:
    given = [
        embedding.Input(text=each) if isinstance(each, str) else embedding.Input(token_ids=embedding.TokenIds(ids=each))
        for each in inputs
    ]
    request = requested(faked, embedding.EmbedRequest(inputs=given, **fields))
    faked.grpc.batcher.add(request)
    await call_of(request).wait()
    return response(request, "")


def rows_of(tokens: pb.Tokens) -> list[float]:
    """The first component of each vector: the sum of the span's ids, so the token's id."""
    return np.frombuffer(tokens.embeddings, "<f4").reshape(-1, tokens.dimensions)[:, 0].tolist()  # type: ignore[no-any-return]


@in_virtual_time
async def test_a_query_has_a_prefix_and_is_filled_up_and_each_token_has_a_row() -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        answer = await answered(faked, "10 13", "20", input_type=QUERY)
    assert [rows_of(each) for each in answer.inputs] == [[1, 70, 5, 10, 13, 2, 99], [1, 70, 5, 20, 2, 99, 99]]
    assert [each.token_count for each in answer.inputs] == [7, 7]
    assert (answer.model_revision, answer.status.code, answer.inputs[0].dimensions) == ("r1", 0, 4)


@pytest.mark.parametrize("fields", [{}, {"input_type": DOCUMENT}])
@in_virtual_time
async def test_a_document_has_its_own_prefix_and_no_row_of_what_is_left_out(fields: dict[str, Any]) -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        answer = await answered(faked, "10 13 30", **fields)
    assert rows_of(answer.inputs[0]) == [1, 71, 10, 30, 2]
    assert answer.inputs[0].token_count == 6


@in_virtual_time
async def test_token_ids_are_taken_as_they_are() -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        answer = await answered(faked, [10, 13, 30], input_type=QUERY)
    assert rows_of(answer.inputs[0]) == [10, 13, 30]


@in_virtual_time
async def test_a_text_beyond_the_length_of_its_side_is_cut_or_refused() -> None:
    words = "10 20 30 40 50 60"
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        refused = await answered(faked, words)
        cut = await answered(faked, words, truncate=embedding.TRUNCATE_END)
        shorter = await answered(faked, words, truncate=embedding.TRUNCATE_END, truncate_to=5)
    assert (refused.status.code, "7" in refused.status.message) == (Code.OUT_OF_RANGE, True)
    assert rows_of(cut.inputs[0]) == [1, 71, 10, 20, 30, 40, 50, 2]
    assert rows_of(shorter.inputs[0]) == [1, 71, 10, 20, 2]


@pytest.mark.parametrize("truncate", [embedding.TRUNCATE_NONE, embedding.TRUNCATE_END, embedding.TRUNCATE_START])
@in_virtual_time
async def test_a_text_cut_to_less_than_the_models_prefix_is_refused(truncate: embedding.Truncate) -> None:
    rules = Rules.of(modelserver_pb2.TokenVectors(document_prefix=[70, 71, 72]))
    async with FakedPipeline(FakeEngine(replace(MULTI, details=rules))).started() as faked:
        for least in (1, 2, 3):
            refused = await answered(faked, "10 20", truncate=truncate, truncate_to=least)
            assert refused.status.code == Code.INVALID_ARGUMENT
            assert f"truncate_to {least} leaves no room for a text behind the 3 tokens" in refused.status.message
        least_of_all = await answered(faked, "10 20 30 40", truncate=embedding.TRUNCATE_END, truncate_to=6)
    assert rows_of(least_of_all.inputs[0]) == [1, 70, 71, 72, 10, 2]


@in_virtual_time
async def test_what_has_no_row_at_all_is_refused_by_itself() -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        answer = await answered(faked, [13, 13], "10")
    assert [each.status.code for each in answer.inputs] == [Code.INVALID_ARGUMENT, 0]


@in_virtual_time
async def test_a_document_in_chunks_is_refused() -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        chunks = embedding.Input(chunks=embedding.Chunks(texts=["10"]))
        with pytest.raises(Exception, match="in chunks"):
            requested(faked, embedding.EmbedRequest(inputs=[chunks]))


@pytest.mark.parametrize("encoding", [embedding.ENCODING_FLOAT16, embedding.ENCODING_INT8, embedding.ENCODING_BINARY])
@in_virtual_time
async def test_rows_have_the_encoding_that_is_asked_for(encoding: embedding.Encoding) -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        (tokens,) = (await answered(faked, "10", encoding=encoding)).inputs
    size = {embedding.ENCODING_FLOAT16: 8, embedding.ENCODING_INT8: 4, embedding.ENCODING_BINARY: 1}[encoding]
    assert len(tokens.embeddings) == 4 * size
    assert len(tokens.scales) == (4 if encoding == embedding.ENCODING_INT8 else 0)
    assert tokens.encoding == encoding


@in_virtual_time
async def test_of_weights_each_id_has_its_largest_and_special_tokens_none() -> None:
    async with FakedPipeline(FakeEngine(SPARSE)).started() as faked:
        answer = await answered(faked, "30 10 30", "0")
    assert [(list(each.ids), list(each.weights)) for each in answer.inputs] == [([10, 30], [10.0, 30.0]), ([], [])]
    assert not answer.inputs[0].embeddings


@in_virtual_time
async def test_weights_have_no_encoding() -> None:
    async with FakedPipeline(FakeEngine(SPARSE)).started() as faked:
        answer = await answered(faked, "10", encoding=embedding.ENCODING_INT8)
    assert (answer.status.code, "encoding" in answer.status.message) == (Code.INVALID_ARGUMENT, True)


@in_virtual_time
async def test_a_request_that_is_refused_harms_no_other_of_its_round() -> None:
    async with FakedPipeline(FakeEngine(SPARSE)).started() as faked:
        text = [embedding.Input(text="10")]
        wrong = requested(faked, embedding.EmbedRequest(inputs=text, encoding=embedding.ENCODING_INT8))
        right = requested(faked, embedding.EmbedRequest(inputs=text))
        for request in (wrong, right):
            faked.grpc.batcher.add(request)
        for request in (wrong, right):
            await call_of(request).wait()
    assert (wrong.code, right.code) == (Code.INVALID_ARGUMENT, Code.OK)


@in_virtual_time
async def test_the_answers_bytes_are_known_when_the_tokens_are_counted() -> None:
    async with FakedPipeline(FakeEngine(MULTI)).started() as faked:
        request = requested(faked, embedding.EmbedRequest(inputs=[embedding.Input(text="10 20 30")]))
        before = TOKEN_VECTORS.result_bytes(request, 4)
        faked.grpc.batcher.add(request)
        await call_of(request).wait()
    assert before == len("10 20 30") // 3 * 16
    assert TOKEN_VECTORS.result_bytes(request, 4) == 6 * 16
    assert not TOKEN_VECTORS.is_large(request)


def test_servers_of_one_revision_must_agree_on_their_rules() -> None:
    other = replace(MULTI, details=replace(Rules.of(SAID), query=Side()))
    assert differences(MULTI, other)
    assert not differences(MULTI, replace(MULTI, address="another:1"))


@pytest.mark.parametrize(
    ("task", "words", "does"), [(Task.EMBED, "embed", "embeds"), (Task.TOKENS, "embed tokens", "embeds tokens")]
)
def test_a_refusal_names_a_task_in_words(task: Task, words: str, does: str) -> None:
    assert (task.words, task.does) == (words, does)
