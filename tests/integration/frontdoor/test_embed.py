"""Every option of a request does what the contract says, through real gRPC."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest
from tokenizers import Tokenizer

from aggregator.request.request import Request
from aggregator.sources.wire import encode as serialized
from modelserver.engines.synthetic import scores, vectors
from protos.embedding.v1 import embedding_pb2 as pb
from protos.ranking.v1 import ranking_pb2, ranking_pb2_grpc
from tests.integration.aggregator.wings.ranking.http_fields import RANKS
from tests.integration.frontdoor.test_http import OpenDoor
from tests.support.listening import (
    DESCRIPTION,
    MODEL_FOLDER,
    ask,
    floats,
    listening,
    refused,
    slow_engine,
    wrong_fields,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFERENCE = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
REFERENCE.no_truncation()
REFERENCE.no_padding()
LONG = " ".join(f"word{number}" for number in range(60))


def ids_of(text: str) -> list[int]:
    found: list[int] = REFERENCE.encode(text).ids
    return found


def expected(ids: list[int], dimensions: int = DESCRIPTION.dimensions, *, normalize: bool = True) -> Any:
    row = vectors(np.array(ids, np.int32), np.array([len(ids)], np.int32), DESCRIPTION.dimensions)[0][:dimensions]
    return row / np.linalg.norm(row) if normalize else row


async def test_a_text_gets_its_vector_counts_and_timings() -> None:
    async with listening() as door:
        answer = await door.stub.Embed(ask("who wrote the art of war", request_id="q-1"))
    [embedding] = answer.embeddings
    np.testing.assert_allclose(floats(embedding), expected(ids_of("who wrote the art of war")), rtol=1e-6)
    assert (embedding.dimensions, embedding.encoding) == (96, pb.ENCODING_FLOAT32)
    assert embedding.token_count == len(ids_of("who wrote the art of war"))
    assert (answer.request_id, answer.model, answer.model_revision) == ("q-1", "minilm", "r1")
    assert answer.status.code == 0
    assert answer.batch_id
    assert answer.timings.HasField("queued")
    assert answer.timings.inference.ToTimedelta().total_seconds() > 0


async def test_token_ids_are_taken_as_they_are() -> None:
    async with listening() as door:
        answer = await door.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[101, 7, 9, 102]))]))
    np.testing.assert_allclose(floats(answer.embeddings[0]), expected([101, 7, 9, 102]), rtol=1e-6)


@pytest.mark.parametrize("truncate", ["TRUNCATE_UNSPECIFIED", "TRUNCATE_NONE"])
async def test_an_over_long_text_is_refused_unless_truncation_is_allowed(truncate: str) -> None:
    async with listening() as door:
        error = await refused(door.stub.Embed(ask(LONG, truncate=truncate)), grpc.StatusCode.OUT_OF_RANGE)
    assert "64" in (error.details() or "")


async def test_truncation_drops_tokens_at_the_end_asked_for_but_no_special_ones() -> None:
    ids = ids_of(LONG)
    async with listening() as door:
        end = await door.stub.Embed(ask(LONG, truncate="TRUNCATE_END"))
        start = await door.stub.Embed(ask(LONG, truncate="TRUNCATE_START"))
    np.testing.assert_allclose(floats(end.embeddings[0]), expected([*ids[:63], ids[-1]]), rtol=1e-6)
    np.testing.assert_allclose(floats(start.embeddings[0]), expected([ids[0], *ids[-63:]]), rtol=1e-6)
    assert end.embeddings[0].token_count == start.embeddings[0].token_count == 64


@pytest.mark.parametrize("dimensions", [32, 64, 96])
async def test_fewer_dimensions_are_a_normalised_prefix(dimensions: int) -> None:
    async with listening() as door:
        answer = await door.stub.Embed(ask("rain", dimensions=dimensions))
    assert answer.embeddings[0].dimensions == dimensions
    np.testing.assert_allclose(floats(answer.embeddings[0]), expected(ids_of("rain"), dimensions), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(floats(answer.embeddings[0])), 1.0, rtol=1e-6)


async def test_a_vector_is_left_as_it_is_when_asked() -> None:
    async with listening() as door:
        raw = await door.stub.Embed(ask("rain", normalize=False))
        unit = await door.stub.Embed(ask("rain", normalize=True))
    np.testing.assert_allclose(floats(raw.embeddings[0]), expected(ids_of("rain"), normalize=False), rtol=1e-6)
    np.testing.assert_allclose(floats(unit.embeddings[0]), expected(ids_of("rain")), rtol=1e-6)


@pytest.mark.parametrize(
    ("encoding", "size", "error"),
    [("FLOAT32", 384, 1e-7), ("FLOAT16", 192, 2e-4), ("INT8", 96, 1.0 / 254), ("BINARY", 12, None)],
)
async def test_an_encoding_has_its_size_and_its_error(encoding: str, size: int, error: float | None) -> None:
    async with listening() as door:
        answer = await door.stub.Embed(ask("rain", encoding=f"ENCODING_{encoding}"))
    [embedding] = answer.embeddings
    assert len(embedding.embedding) == size
    assert embedding.encoding == pb.Encoding.Value(f"ENCODING_{encoding}")
    wanted = expected(ids_of("rain"))
    if error is None:
        np.testing.assert_array_equal(floats(embedding) > 0, wanted >= 0)
    else:
        largest = np.abs(wanted).max() if encoding == "INT8" else 1.0
        assert np.abs(floats(embedding) - wanted).max() <= error * largest * 1.0001
    assert (embedding.scale > 0) == (encoding == "INT8")


async def test_each_input_of_a_call_has_its_own_status() -> None:
    async with listening() as door:
        answer = await door.stub.Embed(ask("rain", "", LONG, "snow"))
    codes = [each.status.code for each in answer.embeddings]
    assert codes == [0, 3, 11, 0]
    assert answer.status.code == 3
    np.testing.assert_allclose(floats(answer.embeddings[3]), expected(ids_of("snow")), rtol=1e-6)
    assert [each.token_count for each in answer.embeddings] == [len(ids_of("rain")), 0, 0, len(ids_of("snow"))]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("text", "fields", "code", "named"),
    [
        ("", {}, grpc.StatusCode.INVALID_ARGUMENT, "inputs[0]"),
        (LONG, {}, grpc.StatusCode.OUT_OF_RANGE, "inputs[0]"),
        ("rain", {"dimensions": 5}, grpc.StatusCode.INVALID_ARGUMENT, "dimensions"),
        ("rain", {"encoding": 99}, grpc.StatusCode.INVALID_ARGUMENT, "encoding"),
        ("rain", {"truncate": 99}, grpc.StatusCode.INVALID_ARGUMENT, "truncate"),
        ("rain", {"priority": 99}, grpc.StatusCode.INVALID_ARGUMENT, "priority"),
        ("rain", {"model": "other"}, grpc.StatusCode.NOT_FOUND, "model"),
        ("rain", {"model_revision": "r9"}, grpc.StatusCode.NOT_FOUND, "model_revision"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_one_and_many_inputs_are_refused_by_the_same_rules(  # noqa: PLR0917 - a row of the table
    open_door: OpenDoor, count: int, text: str, fields: dict[str, Any], code: grpc.StatusCode, named: str
) -> None:
    door, _ = open_door
    error = await refused(door.stub.Embed(ask(*[text] * count, **fields)), code)
    assert error.details()
    assert wrong_fields(error) == [named]


async def test_a_priority_that_is_not_known_is_told_the_names() -> None:
    async with listening() as door:
        error = await refused(door.stub.Embed(ask("a", priority=9)), grpc.StatusCode.INVALID_ARGUMENT)
        names = "PRIORITY_INTERACTIVE, PRIORITY_DEFAULT, PRIORITY_BACKGROUND"
        assert error.details() == f"priority 9 is not known: use one of {names}"


async def test_documents_without_a_score_are_named_in_the_details() -> None:
    unknown: dict[str, Any] = {"priority": 9}
    async with listening(slow_engine(RANKS, compute=scores)) as door:
        stub = ranking_pb2_grpc.RankingStub(door.channel)
        error = await refused(stub.Rank(ranking_pb2.RankRequest(query="a", documents=["", ""])), INVALID)
        assert wrong_fields(error) == ["documents[0]"]
        error = await refused(stub.Score(ranking_pb2.ScoreRequest(pairs=[ranking_pb2.Pair(text="")])), INVALID)
        assert wrong_fields(error) == ["pairs[0]"]
        error = await refused(stub.Rank(ranking_pb2.RankRequest(query="a", documents=["b"], **unknown)), INVALID)
        assert wrong_fields(error) == ["priority"]
        error = await refused(door.stub.Embed(ask("a")), INVALID)
        assert (error.details(), wrong_fields(error)) == (
            "minilm scores and does not embed: no model here embeds",
            ["model"],
        )


async def test_an_expired_request_is_refused_on_arrival() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        message = ask("rain")
        message.expire_time.FromNanoseconds(int((time.time() - 1) * 1e9))
        await refused(door.stub.Embed(message), grpc.StatusCode.DEADLINE_EXCEEDED)
    assert engine.queries == 0


async def test_the_models_in_service_are_listed() -> None:
    async with listening() as door:
        [model] = (await door.stub.ListModels(pb.ListModelsRequest())).models
    assert (model.name, list(model.aliases), model.revision) == ("minilm", ["alias"], "r1")
    assert (model.dimensions, list(model.matryoshka_dimensions), model.max_input_tokens) == (96, [32, 64], 64)
    assert model.ready_model_servers == 1


async def test_large_answers_are_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: dict[str, bool] = {}
    make, here = serialized.to_protobuf, threading.current_thread()

    def noted(request: Request, reply_id: str) -> bytes:
        beside[request.request_id] = threading.current_thread() is not here
        return make(request, reply_id)

    monkeypatch.setattr("aggregator.request.kind._LARGE_BYTES", 10_000)
    monkeypatch.setattr("aggregator.sources.wire.encode.to_protobuf", noted)
    texts = [f"text {number}" for number in range(100)]
    async with listening() as door:
        large = await door.stub.Embed(ask(*texts, request_id="large"))
        await door.stub.Embed(ask("text 1", "text 2", request_id="small"))
    assert beside == {"large": True, "small": False}
    for text, embedding in zip(texts, large.embeddings, strict=True):
        np.testing.assert_allclose(floats(embedding), expected(ids_of(text)), atol=1e-6)
