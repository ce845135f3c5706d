"""Start a real model server process, and talk to it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from grpc_health.v1 import health_pb2_grpc
from typing_extensions import override

from loadtest.stack.service import ModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc
from tests.support.patience import patient
from tests.support.scrape import Metrics, metrics

START_S = patient(120.0)
CALL_S = patient(30.0)
MAX_BYTES = 64 * 1024 * 1024
_POLL_S = 0.01
_DEFAULTS = {"PROFILE__ENABLED": "false", "PROFILE__CACHE": "/nonexistent"}


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, with these settings of the model server (names without their prefix)."""
    bound = {"GRPC__BIND": "127.0.0.1:0", "TELEMETRY__METRICS_BIND": "127.0.0.1:0"}
    told = {f"TOKENBATCH_MODELSERVER_{name}": value for name, value in {**bound, **_DEFAULTS, **settings}.items()}
    return {**os.environ, **told}


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "modelserver", *arguments],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


class ServerProcess(ModelServer):
    """One model server, started, and calls to it once it serves; `log` has the lines of its log that were read."""

    def __init__(self, settings: Mapping[str, str], module: str = "modelserver") -> None:
        self._folder = tempfile.TemporaryDirectory()
        told = {**_DEFAULTS, **settings}
        path = told.pop("MODEL__PATH", "")
        super().__init__(Path(self._folder.name) / "log", model_path=path, settings=told, module=module)
        self.log: list[Mapping[str, Any]] = []
        self.launch()

    def connect(self) -> None:
        self.event("serving")
        options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.max_send_message_length", MAX_BYTES)]
        self.channel = grpc.insecure_channel(self.address, options)
        self.stub = pb_grpc.ModelServerStub(self.channel)
        self.description = self.describe()

    def event(self, name: str, timeout_s: float = START_S) -> Mapping[str, Any]:
        """The first log line of this event, waited for."""
        end_s = time.monotonic() + timeout_s
        while True:
            ended = self.exit_code is not None
            self.log += self.news()
            for line in self.log:
                if line["event"] == name:
                    return line
            assert not ended, self.child.log.tail()
            assert time.monotonic() < end_s, f"no event {name!r}; {self.child.log.tail()}"
            time.sleep(_POLL_S)

    def exits(self) -> int:
        """The exit code that it ends with by itself."""
        end_s = time.monotonic() + CALL_S
        while self.exit_code is None:
            assert time.monotonic() < end_s, f"it runs on; {self.child.log.tail()}"
            time.sleep(_POLL_S)
        return self.exit_code

    def describe(self) -> pb.DescribeResponse:
        said: pb.DescribeResponse = self.stub.Describe(pb.DescribeRequest(), timeout=CALL_S)
        return said

    def embed(self, queries: Sequence[Sequence[int]], **changes: Any) -> Answer:
        return Answer(self.stub.EmbedBatch(self.request(queries, **changes), timeout=CALL_S))

    def send(self, queries: Sequence[Sequence[int]], **changes: Any) -> Any:
        """One batch, under way: a gRPC future."""
        return self.stub.EmbedBatch.future(self.request(queries, **changes), timeout=CALL_S)

    def request(self, queries: Sequence[Sequence[int]], **changes: Any) -> pb.EmbedBatchRequest:
        fields: dict[str, Any] = {
            "batch_id": "test",
            "model": self.description.model,
            "model_revision": self.description.model_revision,
            "token_ids": np.array([token for query in queries for token in query], "<i4").tobytes(),
            "lengths": np.array([len(query) for query in queries], "<i4").tobytes(),
        }
        return pb.EmbedBatchRequest(**{**fields, **changes})

    def metrics(self) -> Metrics:
        return metrics(self.metrics_address)

    def until_queued(self, tokens: int) -> None:
        """Wait until so many tokens wait for the engine: a call that was sent may not have been taken in yet."""
        self._until("tokenbatch_engine_queued_tokens", tokens)

    def until_steps(self, number: int) -> None:
        """Wait until so many steps are counted: a step is counted after it is answered."""
        self._until("tokenbatch_engine_duration_seconds_count", number)

    def _until(self, name: str, value: int) -> None:
        end_s = time.monotonic() + CALL_S
        while (found := self.metrics().value(name)) != value:
            assert time.monotonic() < end_s, f"{name} is {found}, not {value}"
            time.sleep(_POLL_S)

    @override
    def kill(self) -> None:
        super().kill()
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class Answer:
    """One batch's answer."""

    message: pb.EmbedBatchResponse

    @property
    def matrix(self) -> npt.NDArray[np.float32]:
        """Float32 [queries, dimensions]."""
        return np.frombuffer(self.message.embeddings, "<f4").reshape(-1, self.message.dimensions)

    @property
    def faults(self) -> list[tuple[int, int]]:
        """Place and code of each failed query."""
        return [(error.index, error.code) for error in self.message.errors]


@contextmanager
def serving(**settings: str) -> Generator[ServerProcess]:
    """A server with these settings, connected; ended afterwards."""
    server = ServerProcess(settings)
    try:
        server.connect()
        yield server
        server.channel.close()
    finally:
        server.kill()


def synthetic(**settings: str) -> dict[str, str]:
    """Settings of a synthetic server, which starts at once."""
    return {"ENGINE__KIND": "synthetic", **settings}


def code_of(error: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = error.code()
    return code


def health_stub(server: ServerProcess) -> Any:
    """The standard health service's stub (its published types lack its methods)."""
    return health_pb2_grpc.HealthStub(server.channel)


def imported_libraries(pid: int) -> str:
    """The shared libraries that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
