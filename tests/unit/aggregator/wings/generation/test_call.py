"""One call carries all sequences of a server: silence is its fault only while it has something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aggregator.errors import BatchFailed, Code, ModelServerTimedOut
from aggregator.observability.costs import Costs
from aggregator.scheduler.work_item import Priority
from aggregator.wings.generation.call import GenerateCall, StreamStreamCall
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.generation.test_generations import GENERATING, PROMPT


class SilentCall:
    """A call over which nothing comes."""

    async def read(self) -> pb.GenerateStep:
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, command: pb.GenerateCommand) -> None:
        del command

    def cancel(self) -> None:
        pass


@dataclass(eq=False)
class Lost:
    """A sequence that notes how it was lost."""

    token_ids: bytes = PROMPT
    sampling: pb.Sampling = field(default_factory=pb.Sampling)
    account: int = 0
    priority: Priority = Priority.DEFAULT
    lost: list[BatchFailed] = field(default_factory=list[BatchFailed])

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[Any], stop_tokens: int) -> None:
        raise AssertionError((token_ids, logprobs, stop_tokens))

    def end(self, finish_reason: int) -> None:
        raise AssertionError(finish_reason)

    def fail(self, code: Code, message: str) -> None:
        raise AssertionError((code, message))

    def server_lost(self, error: BatchFailed) -> None:
        self.lost.append(error)


@in_virtual_time
async def test_a_server_may_be_silent_until_a_sequence_runs() -> None:
    call = GenerateCall(GENERATING, lambda: cast("StreamStreamCall", SilentCall()), lambda error: error, Costs())
    gone, running = Lost(), Lost()
    call.generate(gone)
    await asyncio.sleep(1.0)
    call.abort(gone)  # and no step ends the call
    await asyncio.sleep(8.0)
    call.generate(running)
    await asyncio.sleep(9.0)
    assert running.lost == []
    await asyncio.sleep(2.0)
    assert [type(error) for error in running.lost] == [ModelServerTimedOut]
    assert gone.lost == []
