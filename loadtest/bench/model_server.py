"""P3: what gRPC and the queue cost, as the model server's throughput over that of its engine by itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from loadtest.bench.asked import Asked, asked
from loadtest.bench.figures import Figure
from loadtest.bench.processor import cpu_s
from loadtest.bench.setting import Plan
from loadtest.bench.turns import Medians, in_turns
from loadtest.stack.service import ModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

NAME = "P3"
QUERIES = 256
TOKENS = 10

_CALL_S = 120.0
_TURN_S = 2.0
_OUT = 2
"""Batches out at a time: one runs, one is staged."""
_TURNS_PER_REPEAT = 5
_TICK_S = 0.01
"""In which the kernel counts CPU time."""
_MAX_BYTES = 64 * 1024 * 1024


def measure(plan: Plan) -> list[Figure]:
    """Measure both in turns: each has its own process and engine, and one works at a time."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    turns = plan.repeats * _TURNS_PER_REPEAT
    command = ["loadtest.bench.programs.engine_forward", "--queries", str(QUERIES), "--tokens", str(TOKENS)]
    with asked(command, plan.folder / "forward.log") as forward, _server(plan.folder / "modelserver.log") as server:
        steps = max(5, round(plan.turn_share * _TURN_S / forward.seconds(1)))
        server.seconds(2)
        sides = {"forward": partial(_turn, forward, steps), "server": partial(_turn, server, steps)}
        found = in_turns(NAME, turns, sides, str)
    notes = f"{steps} batches of {QUERIES} × {TOKENS} tokens a turn, none merged, {forward.engine}"
    medians = Medians(NAME, turns, notes, {"server_over_forward": "≥ 0.95"})
    engine, whole = found["forward"], found["server"]
    return [
        medians.of("server_throughput", "token/s", (steps * QUERIES * TOKENS / turn.wall_s for turn in whole)),
        medians.ratio("server_over_forward", (turn.wall_s for turn in engine), (turn.wall_s for turn in whole)),
        medians.ratio("server_over_forward_cpu", (turn.cpu_s for turn in whole), (turn.cpu_s for turn in engine)),
    ]


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's turn: time by the clock, and CPU time of its process, all threads."""

    wall_s: float
    cpu_s: float


class Server:
    """The model server over gRPC, with one batch running and one staged."""

    def __init__(self, stub: pb_grpc.ModelServerStub, pid: int) -> None:
        self.pid = pid
        self._stub = stub
        self._said: pb.DescribeResponse = stub.Describe(pb.DescribeRequest(), timeout=_CALL_S)
        self._rng = np.random.default_rng()

    def seconds(self, steps: int) -> float:
        """Seconds that it takes for `steps` batches, answers read."""
        requests = [self._request() for _ in range(steps)]
        out: deque[Any] = deque()
        began_s = time.perf_counter()
        for request in requests:
            out.append(self._stub.EmbedBatch.future(request, timeout=_CALL_S))
            if len(out) == _OUT:
                self._read(out.popleft())
        while out:
            self._read(out.popleft())
        return time.perf_counter() - began_s

    def _request(self) -> pb.EmbedBatchRequest:
        token_ids = self._rng.integers(1000, self._said.vocabulary_size, QUERIES * TOKENS, np.int32)
        return pb.EmbedBatchRequest(
            model=self._said.model,
            model_revision=self._said.model_revision,
            token_ids=token_ids.astype("<i4").tobytes(),
            lengths=np.full(QUERIES, TOKENS, "<i4").tobytes(),
            max_step_tokens=QUERIES * TOKENS,
        )

    def _read(self, call: Any) -> None:
        answer: pb.EmbedBatchResponse = call.result()
        matrix = np.frombuffer(answer.embeddings, "<f4").reshape(QUERIES, self._said.dimensions)
        assert not answer.errors, "valid ids were refused. This is a bug."
        assert np.isfinite(matrix).all(), "vectors are not finite. This is a bug."


def _turn(side: Asked | Server, steps: int, _: int) -> Turn:
    before_s = cpu_s(side.pid)
    wall_s = side.seconds(steps)
    return Turn(wall_s, max(_TICK_S, cpu_s(side.pid) - before_s))


@contextmanager
def _server(log_file: Path) -> Generator[Server]:
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    with (
        ModelServer(log_file, settings={"PROFILE__ENABLED": "false"}) as server,
        grpc.insecure_channel(server.address, options) as channel,
    ):
        yield Server(pb_grpc.ModelServerStub(channel), server.pid)
