"""Engines that hang, break or lose their GPU in a real model server: it leaves service, or the process ends."""

from __future__ import annotations

import json

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.support.model_server_process import ServerProcess, code_of, health_stub, serving, synthetic

POISON = 2054
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

pytestmark = pytest.mark.timeout(120)


def ill(mode: str, **settings: str) -> dict[str, str]:
    """Settings of a synthetic server that POISON makes ill."""
    return synthetic(SYNTHETIC__POISON_TOKEN_ID=str(POISON), SYNTHETIC__POISON_MODE=mode, **settings)


def refused(server: ServerProcess, *tokens: int) -> grpc.StatusCode:
    """The code that a batch of this query ends with."""
    with pytest.raises(grpc.RpcError) as error:
        server.embed([tokens])
    return code_of(error.value)


def test_an_engine_failing_eight_steps_in_a_row_is_rebuilt_out_of_service() -> None:
    with serving(**ill("error", SYNTHETIC__LOAD_S="1")) as server:
        watch = health_stub(server).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        server.embed([[1]])
        assert [refused(server, POISON) for _ in range(8)] == [grpc.StatusCode.INTERNAL] * 8
        assert next(watch).status == NOT_SERVING
        assert refused(server, 1) is grpc.StatusCode.UNAVAILABLE
        assert next(watch).status == SERVING
        assert server.embed([[1]]).faults == []


def test_a_rebuilt_engine_failing_its_first_eight_steps_ends_the_process() -> None:
    with serving(**ill("error")) as server:
        watch = health_stub(server).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        for _ in range(8):
            refused(server, POISON)
        assert [next(watch).status, next(watch).status] == [NOT_SERVING, SERVING]
        for _ in range(8):
            refused(server, POISON)
        assert server.exits() == 1


@pytest.mark.parametrize("task", ["embed", "both"])
def test_a_lost_gpu_ends_the_process_at_once(task: str) -> None:
    with serving(**ill("lose", MODEL__TASK=task)) as server:
        assert refused(server, POISON) in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
        assert server.exits() == 1
        failure = server.event("the engine left service")
        assert failure["error"].startswith("DeviceLost: the GPU is lost to this process: CUDA error")


@pytest.mark.parametrize(
    ("phase", "settings"),
    [
        ("load", synthetic(SYNTHETIC__LOAD_S="1000")),
        ("profile", synthetic(SYNTHETIC__FIXED_S="1000")),
        ("step", ill("hang")),
        ("close", ill("break", SYNTHETIC__CLOSE_S="1000")),
    ],
)
def test_a_phase_that_hangs_ends_the_process(phase: str, settings: dict[str, str]) -> None:
    told = {**settings, "CONSTANTS": json.dumps({"modelserver.watch:TIMEOUTS_S": {phase: 1}})}
    server = ServerProcess(told)
    try:
        if phase in {"step", "close"}:
            server.connect()
            _sent = server.send([[POISON]])  # a call that nobody keeps is cancelled
        assert server.event("the engine hangs")["error"] == f"{phase} takes longer than 1 s"
        assert server.exits() == 1
    finally:
        server.kill()
