"""A model server that generates, and its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from aggregator.errors import BatchFailed, Code
from aggregator.model_server import ModelServer
from aggregator.scheduler.work_item import Priority, Task
from protos.generation.v1.generation_pb2 import TokenLogprobs
from protos.modelserver.v1.modelserver_pb2 import Sampling

TASK = Task.GENERATE


class ServerSequence(Protocol):
    """One sequence that a server generates: a generation, or the probe of a server. Called on the event loop."""

    @property
    def token_ids(self) -> bytes: ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def account(self) -> int:
        """Under which its part of the steps' time is counted."""
        ...

    @property
    def priority(self) -> Priority: ...

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], stop_tokens: int) -> None: ...

    def end(self, finish_reason: int) -> None: ...

    def fail(self, code: Code, message: str) -> None: ...

    def server_lost(self, error: BatchFailed) -> None: ...


class GeneratingServer(ModelServer, Protocol):
    """What the core does not call of a server that generates."""

    def generate(self, sequence: ServerSequence) -> None:
        """Start a sequence; it receives its tokens, and its end once."""
        ...

    def abort(self, sequence: ServerSequence) -> None: ...

    async def probe(self, token_ids: bytes, *, timeout_s: float) -> None:
        """Have one token generated after these ids. Raises BatchFailed."""
        ...


def generating(server: ModelServer) -> GeneratingServer:
    return cast("GeneratingServer", server)
