"""What every model server keeps, whichever engine computes: one suite over the synthetic one and vLLM's on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tokenizers import Tokenizer

from modelserver.model_files import tokenizer_fingerprint
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.integration.modelserver.texts import generated, questions, token_ids
from tests.support.model_server_process import CALL_S, START_S, ServerProcess, code_of, health_stub, serving

pytestmark = pytest.mark.timeout(START_S + CALL_S)

SMALL = {"ENGINE__STEP_TOKENS": "1024"}
KINDS = {
    "synthetic": {"ENGINE__KIND": "synthetic", "SYNTHETIC__FIXED_S": "0.02", **SMALL},
    "direct": {"ENGINE__KIND": "direct", **SMALL},
}
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.05}
SERVICES = ("", "modelserver.v1.ModelServer")


@pytest.fixture(scope="module", params=["synthetic", pytest.param("direct", marks=pytest.mark.vllm)])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with serving(**KINDS[request.param]) as server:
        assert server.description.engine == request.param
        yield server


@pytest.fixture(scope="module")
def queries() -> list[list[int]]:
    return token_ids(questions(12))


def same(server: ServerProcess, left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> bool:
    """Equal up to rounding, which depends on what else is in a step."""
    largest = float(np.abs(right).max())
    return bool(np.allclose(left, right, rtol=0, atol=largest * TOLERANCE[server.description.dtype]))


def test_it_says_what_it_is(server: ServerProcess) -> None:
    said = server.description
    assert (said.model, said.dimensions, said.max_input_tokens) == ("all-minilm-l6-v2", 384, 256)
    assert said.model_revision.startswith("sha256:")
    assert (said.step_token_capacity, said.vocabulary_size, said.normalizes) == (1024, 30522, True)
    assert said.step_query_capacity >= 1024 // 3
    assert said.instance_id
    assert said.engine_version
    assert list(said.matryoshka_dimensions) == []


def test_its_tokenizers_files_load_and_match_their_fingerprint(server: ServerProcess) -> None:
    files: dict[str, bytes] = {}
    for chunk in server.stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=CALL_S):
        files[chunk.file_name] = files.get(chunk.file_name, b"") + chunk.data
    assert tokenizer_fingerprint(files) == server.description.tokenizer_fingerprint
    tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
    tokenizer.no_padding()
    assert tokenizer.encode("hello world").ids == [101, 7592, 2088, 102]


def test_every_query_gets_its_vector_pooled_but_not_normalised(server: ServerProcess, queries: list[list[int]]) -> None:
    answer = server.embed(queries)
    assert answer.matrix.shape == (len(queries), 384)
    assert answer.faults == []
    assert np.isfinite(answer.matrix).all()
    assert (np.abs(np.linalg.norm(answer.matrix, axis=1) - 1) > 0.1).all()


def test_a_querys_vector_does_not_depend_on_its_neighbours(server: ServerProcess, queries: list[list[int]]) -> None:
    together = server.embed(queries).matrix
    apart = np.concatenate([server.embed([query]).matrix for query in queries])
    assert same(server, together, apart)
    assert same(server, server.embed(queries[::-1]).matrix[::-1], together)


def test_different_queries_get_different_vectors(server: ServerProcess, queries: list[list[int]]) -> None:
    matrix = server.embed(queries).matrix
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    assert (unit @ unit.T - 2 * np.eye(len(queries))).max() < 0.99


def test_queries_of_every_length_and_script_have_vectors(server: ServerProcess) -> None:
    batch: list[list[int]] = []
    for ids in sorted(token_ids(generated()), key=len):
        if sum(map(len, batch)) + len(ids) <= 1024:
            batch.append(ids)
    assert np.isfinite(server.embed(batch).matrix).all()


def test_bad_queries_fail_alone(server: ServerProcess, queries: list[list[int]]) -> None:
    good = queries[:3]
    alone = server.embed(good).matrix
    mixed = server.embed([[], good[0], [5, -1], good[1], [30522], [7] * 257, good[2]])
    invalid, too_long = grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.OUT_OF_RANGE.value[0]
    assert mixed.faults == [(0, invalid), (2, invalid), (4, invalid), (5, too_long)]
    assert same(server, mixed.matrix[[1, 3, 6]], alone)
    assert not mixed.matrix[[0, 2, 4, 5]].any()


def test_a_batch_of_bad_queries_only_is_answered_without_the_engine(server: ServerProcess) -> None:
    answer = server.embed([[], [-7]])
    assert [place for place, _ in answer.faults] == [0, 1]
    assert not answer.matrix.any()
    assert answer.message.step_tokens == 0


@pytest.mark.parametrize(
    ("queries", "changes", "code"),
    [
        ([], {}, grpc.StatusCode.INVALID_ARGUMENT),
        ([[1, 2]], {"lengths": b"\1\0\0\0"}, grpc.StatusCode.INVALID_ARGUMENT),
        ([[1, 2]], {"lengths": b"\1\0\0"}, grpc.StatusCode.INVALID_ARGUMENT),
        ([[1] * 256] * 4 + [[1]], {}, grpc.StatusCode.INVALID_ARGUMENT),
        ([[1]] * 1024, {"lengths": b"\1\0\0\0" * 1025}, grpc.StatusCode.INVALID_ARGUMENT),
        ([[1, 2]], {"model": "another"}, grpc.StatusCode.FAILED_PRECONDITION),
        ([[1, 2]], {"model_revision": "another"}, grpc.StatusCode.FAILED_PRECONDITION),
    ],
    ids=[
        *("no query", "ids of no query", "half a length", "too many tokens", "too many queries"),
        *("another model", "another revision"),
    ],
)
def test_what_is_not_a_batch_for_it_is_refused_whole(
    server: ServerProcess, queries: list[list[int]], changes: dict[str, Any], code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.embed(queries, **changes)
    assert code_of(refused.value) is code
    assert server.embed([[101, 102]]).faults == [], "the server survives it"


def test_the_largest_step_fits(server: ServerProcess) -> None:
    assert np.isfinite(server.embed([[2054] * 256] * 4).matrix).all()


def test_the_most_queries_fit(server: ServerProcess) -> None:
    most = min(server.description.step_query_capacity, 1024)
    assert np.isfinite(server.embed([[2054]] * most).matrix).all()


def test_batches_sent_at_once_merge_in_the_smallest_budget_answered_apart(
    server: ServerProcess, queries: list[list[int]]
) -> None:
    alone = [server.embed([query]).matrix for query in queries]
    budgets = [100 if place % 2 else 40 for place in range(len(queries))]
    calls = [server.send([query], max_step_tokens=budget) for query, budget in zip(queries, budgets, strict=True)]
    for call, vector, query, budget in zip(calls, alone, queries, budgets, strict=True):
        answer = call.result()
        assert same(server, np.frombuffer(answer.embeddings, "<f4")[None], vector)
        assert len(query) <= answer.step_tokens <= budget
        assert answer.step_duration_s > 0
        assert answer.idle_before_s >= 0
        assert answer.staged_s >= 0
    assert any(call.result().step_tokens > len(query) for call, query in zip(calls, queries, strict=True))


def test_a_second_attempt_and_an_isolated_batch_are_never_merged(
    server: ServerProcess, queries: list[list[int]]
) -> None:
    changes: list[dict[str, Any]] = [{"attempt": 1}, {"isolate": True}, {}, {"attempt": 2, "isolate": True}] * 3
    calls = [server.send([query], **change) for query, change in zip(queries, changes, strict=True)]
    for call, query, change in zip(calls, queries, changes, strict=True):
        if change:
            assert call.result().step_tokens == len(query)


def test_a_cancelled_call_leaves_the_server_in_order(server: ServerProcess, queries: list[list[int]]) -> None:
    calls = [server.send([query]) for query in queries]
    for call in calls[1:]:
        call.cancel()
    assert len(calls[0].result().embeddings) == 384 * 4
    assert server.embed(queries[:2]).message.queued_tokens == 0


def test_health_and_reflection_answer(server: ServerProcess) -> None:
    health = health_stub(server)
    for service in SERVICES:
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    method = reflection_pb2.ServerReflectionRequest(file_containing_symbol="modelserver.v1.ModelServer.EmbedBatch")
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services=""), method])
    listed, described = reflection.ServerReflectionInfo(asked, timeout=CALL_S)
    services = {service.name for service in listed.list_services_response.service}
    assert services >= {"modelserver.v1.ModelServer", "grpc.health.v1.Health"}
    assert described.file_descriptor_response.file_descriptor_proto
