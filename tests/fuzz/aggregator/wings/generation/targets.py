"""Fuzz what texts come and go by: requests in protobuf and JSON, and a model server's steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from aggregator.errors import BatchFailed, Code, ModelServerLost, RequestError
from aggregator.observability.costs import FREE
from aggregator.registry import KINDS
from aggregator.request.request import Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import Refused, decode_record, intakes
from aggregator.sources.kafka.replies import encode_refusal, encode_reply
from aggregator.wings.generation.call import GenerateCall
from aggregator.wings.generation.generation import generation_of
from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1.generation_pb2 import TokenLogprobs
from protos.modelserver.v1 import modelserver_pb2
from tests.fuzz.target import Target
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import DESCRIPTION
from tests.support.records import in_flight_of

_TEXT = "the text of a prompt"
_SETTINGS = KafkaSettings(topics=(TopicSettings(name="embed.requests.v1", task="generate"),))
_INTAKE = replace(intakes(_SETTINGS, KAFKA, "m", kinds=KINDS)["embed.requests.v1"], max_record_bytes=3000)
_FAILURE = Failure(Code.INTERNAL, "it broke")


def _take(value: bytes, *headers: tuple[str, bytes]) -> Request | Refused:
    """Decode one record, and write every answer that may become of it."""
    taken = decode_record(in_flight_of(value, headers), _INTAKE, received_s=0.0, wall_s=0.0)
    if isinstance(taken, Refused):
        assert isinstance(taken.error, RequestError), "A refusal has no code that its sender knows."
        assert _TEXT not in str(taken.error), "A refusal quotes a prompt."
        if taken.route is not None:
            encode_refusal(taken, "g")
        return taken
    assert taken.inputs[0] or generation_of(taken).messages, "There is no input."
    taken.fail(_FAILURE)
    encode_reply(taken, "g", 1.0)
    return taken


def check_protobuf(data: bytes) -> Request | Refused:
    """A value without headers is protobuf."""
    return _take(data)


def check_json(data: bytes) -> Request | Refused:
    """A value that says it is JSON."""
    return _take(data, ("content-type", b"application/json"))


class _Noting:
    """A running sequence that checks that its events fit together."""

    token_ids = b"\1\0\0\0"
    sampling = modelserver_pb2.Sampling(max_tokens=5)
    account = 0
    priority = Priority.DEFAULT

    def __init__(self) -> None:
        self.over = False

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], stop_tokens: int) -> None:
        assert not self.over, "A sequence got tokens after its end."
        assert not logprobs or len(logprobs) == len(token_ids), "Tokens and their probabilities are not as many."
        assert 0 <= stop_tokens <= len(token_ids), "More stop tokens than tokens came."

    def end(self, finish_reason: int) -> None:
        assert finish_reason in {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}, "A generation ended for no reason."
        self._end()

    def fail(self, code: Code, message: str) -> None:
        del message
        assert code in Code, "A code that nobody knows."
        self._end()

    def server_lost(self, error: BatchFailed) -> None:
        assert str(error), "A sequence lost its server without an error."
        self._end()

    def _end(self) -> None:
        assert not self.over, "A sequence ended twice."
        self.over = True


def check_step(data: bytes) -> None:
    """What a model server says after a step."""
    try:
        step = modelserver_pb2.GenerateStep.FromString(data)
    except Exception:  # noqa: BLE001 - what is no message counts as an empty one
        return
    with contextlib.suppress(ModelServerLost):
        asyncio.run(_hear(step))


async def _hear(step: modelserver_pb2.GenerateStep) -> None:
    """Three sequences run, of which the step may report."""
    call = GenerateCall(DESCRIPTION, _closed, lambda _: ModelServerLost("x"), FREE)
    for _ in range(3):
        call.generate(_Noting())
    call.read(step)


def _closed() -> NoReturn:
    """The steps do not come by a call: the task that would carry one ends, and logs nothing when it is collected."""
    raise asyncio.CancelledError


TARGETS = (
    Target("generation_protobuf", check_protobuf),
    Target("generation_json", check_json),
    Target("generation_step", check_step),
)
