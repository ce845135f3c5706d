"""What a server that generates reports of its steps."""

from __future__ import annotations

from aggregator.errors import ModelServerLost
from aggregator.replicas.generate_call import GenerateCall, StreamStreamCall
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import description


def never() -> StreamStreamCall:
    raise AssertionError("no call is opened")


def test_the_last_steps_are_kept_as_they_were_reported_and_the_load_is_that_of_the_last() -> None:
    call = GenerateCall(description(), never, lambda _: ModelServerLost("x"))
    before = call.load
    for prompt_tokens in range(600):
        call.read(
            pb.GenerateStep(
                step_duration_s=0.02,
                free_kv_tokens=900,
                running=3,
                decoding_sequences=2,
                prompt_tokens=prompt_tokens,
                embedding_tokens=40,
            )
        )
    assert before is None
    assert call.load is call.last_steps[-1]
    assert call.load is not None
    assert (call.load.decoding_sequences, call.load.prompt_tokens, call.load.embedding_tokens) == (2, 599, 40)
    assert len(call.last_steps) == 512
    call.read(pb.GenerateStep())  # a refusal is no step
    assert call.load.prompt_tokens == 599
