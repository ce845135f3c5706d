"""A model server for both tasks: what it describes, serves, refuses and falls back to, over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
import numpy as np
import pytest

from modelserver.model_files import locate
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.model_server_process import CALL_S, ServerProcess, code_of, run, serving, synthetic

pytestmark = pytest.mark.timeout(120)

BOTH = synthetic(MODEL__TASK="both")


def generated(
    server: ServerProcess, *, prompt: int = 3, tokens: int = 4, stop_token_ids: Sequence[int] = ()
) -> list[pb.GenerateStep]:
    """The messages of one generation."""
    said = server.description
    start = pb.StartSequence(
        sequence=1,
        model=said.model,
        model_revision=said.model_revision,
        token_ids=np.arange(5, 5 + prompt).astype("<i4").tobytes(),
        sampling=pb.Sampling(max_tokens=tokens, stop_token_ids=stop_token_ids),
    )
    commands: Iterator[pb.GenerateCommand] = iter([pb.GenerateCommand(start=start)])
    return list(server.stub.Generate(commands, timeout=CALL_S))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(**BOTH) as started:
        yield started


def test_it_describes_both_tasks_and_what_each_of_them_needs(server: ServerProcess) -> None:
    said = server.description
    assert list(said.tasks) == ["embed", "generate"]
    assert not said.degraded
    assert said.dimensions > 0
    assert said.profile.saturation_point > 0
    assert said.generation.per_token_s > 0.0
    assert said.generation.max_sequences > 0
    assert said.generation.context_tokens == said.max_input_tokens + 1


def test_batches_and_generations_go_to_one_address(server: ServerProcess) -> None:
    answer = server.embed([[5, 6], [7]])
    assert answer.matrix.shape == (2, server.description.dimensions)
    assert answer.message.embed_room_tokens == server.description.step_token_capacity
    steps = generated(server)
    assert sum(len(step.token_ids) for step in steps) == 4 * 4
    assert steps[0].embed_room_tokens > 0


def test_a_batch_that_was_tried_before_has_the_same_vectors(server: ServerProcess) -> None:
    first, again = server.embed([[5, 6], [7]]), server.embed([[5, 6], [7]], attempt=1)
    assert (first.matrix == again.matrix).all()


def test_an_input_of_the_whole_context_is_refused_and_neighbours_embedded(server: ServerProcess) -> None:
    context = server.description.generation.context_tokens
    answer = server.embed([[5] * context, [6] * (context - 1)])
    assert answer.faults == [(0, grpc.StatusCode.OUT_OF_RANGE.value[0])]
    assert answer.matrix[1].any()


def test_a_text_ends_with_the_context(server: ServerProcess) -> None:
    context = server.description.generation.context_tokens
    steps = generated(server, prompt=context - 3, tokens=50)
    assert sum(len(step.token_ids) for step in steps) == 4 * 3
    assert steps[-1].finished[0].length


def test_a_stop_token_id_outside_the_vocabulary_never_reaches_the_engine(server: ServerProcess) -> None:
    vocabulary = server.description.vocabulary_size
    for token_id, code in ((vocabulary - 1, 0), (vocabulary, grpc.StatusCode.INVALID_ARGUMENT.value[0])):
        [end] = [end for step in generated(server, stop_token_ids=[5, token_id]) for end in step.finished]
        assert end.code == code


def test_stopping_it_finishes_what_was_accepted() -> None:
    with serving(**BOTH, SYNTHETIC='{"fixed_s": 1.5}') as slow:
        accepted = [slow.send([[5, 6]], isolate=True) for _ in range(2)]
        slow.until_queued(2)  # while the first one runs
        assert slow.stop() == 0
        assert all(call.result().dimensions for call in accepted)


def test_a_failed_self_check_leaves_one_task_and_says_so() -> None:
    started = ServerProcess(BOTH, "tests.integration.modelserver.wings.both.disturbed_modelserver")
    try:
        started.connect()
        said = started.description
        assert list(said.tasks) == ["embed"]  # its files have the modules of an embedding model
        assert said.degraded == "embeddings and generations cannot share steps: on purpose"
        assert started.event("one task is served")["level"] == "error"
        assert started.metrics().value("tokenbatch_mixed_engine_fallbacks_total") == 1
        assert started.embed([[5, 6]]).matrix.any()
        with pytest.raises(grpc.RpcError) as refused:
            generated(started)
        assert code_of(refused.value) is grpc.StatusCode.FAILED_PRECONDITION
    finally:
        started.kill()


def test_check_names_the_tasks_and_refuses_a_model_that_cannot_do_both() -> None:
    assert ": embed, generate" in run("--check", **BOTH).stdout
    checked = run("--check", MODEL__TASK="both", MODEL__PATH=str(locate("", "")))
    assert checked.returncode == 2
    assert "is not a causal language model: it cannot generate; set model.task to embed" in checked.stderr
