"""Every process with 1,024 open files as its hard limit, and more idle connections than that."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from loadtest.stack.child import Child
from loadtest.stack.ports import free_ports
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

IDLE = 600
OPEN_IDLE = f"""
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range({IDLE})]
print(len(held), flush=True)
sys.stdin.read()
"""


def limited_to(files: int) -> list[str]:
    return ["bash", "-c", f'ulimit -n {files} && exec "$@"', "bash", sys.executable, "-m"]


def told(prefix: str, **settings: str) -> Mapping[str, str]:
    return {**os.environ, **{f"TOKENBATCH_{prefix}_{name}": value for name, value in settings.items()}}


@contextmanager
def idle_callers(port: int) -> Generator[None]:
    """1,200, in processes of their own, each of which may open 1,024 files too."""
    with half_of_them(port), half_of_them(port):
        yield


@contextmanager
def half_of_them(port: int) -> Generator[None]:
    command = [sys.executable, "-c", OPEN_IDLE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as callers:
        assert callers.stdout is not None
        assert callers.stdout.readline() == f"{IDLE}\n"
        try:
            yield
        finally:
            callers.kill()


@contextmanager
def limited(name: str, module: str, environment: Mapping[str, str], log_file: Path) -> Generator[Child]:
    child = Child(name, [*limited_to(1024), *module.split()], log_file, environment)
    try:
        yield child
    finally:
        child.kill()


async def status(port: int, path: str) -> int:
    """0 where nobody answers."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}", timeout=5) as got:  # type: ignore[arg-type]
            return got.status
    return 0


async def answers(port: int, path: str = "/livez") -> bool:
    return await status(port, path) == 200


async def by_http(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/embeddings", json={"input": "rain"}) as response,
    ):
        return len((await response.json())["data"])


async def by_grpc(port: int) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = pb.EmbedRequest(inputs=[pb.Input(text="rain")])
        return len((await pb_grpc.EmbeddingsStub(channel).Embed(call, timeout=5)).embeddings)


async def test_idle_callers_of_one_port_close_no_other(tmp_path: Path) -> None:
    model, model_metrics, by_calls, openai, metrics = free_ports(5)
    server = told(
        "MODELSERVER",
        ENGINE__KIND="synthetic",
        PROFILE__ENABLED="false",
        GRPC__BIND=f"127.0.0.1:{model}",
        TELEMETRY__METRICS_BIND=f"127.0.0.1:{model_metrics}",
    )
    aggregator = told(
        "AGGREGATOR",
        KAFKA__ENABLED="false",
        GRPC__BIND=f"127.0.0.1:{by_calls}",
        HTTP__BIND=f"127.0.0.1:{openai}",
        TELEMETRY__METRICS_BIND=f"127.0.0.1:{metrics}",
        MODELS=json.dumps([{"name": "all-minilm-l6-v2", "servers": [f"127.0.0.1:{model}"]}]),
    )
    log = tmp_path / "aggregator.log"
    with (
        limited("model server", "modelserver", server, tmp_path / "modelserver.log"),
        limited("aggregator", "aggregator", aggregator, log),
    ):
        await until_ready(metrics)
        lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
        assert len([line for line in lines if "256 connections, not 4096" in json.dumps(line)]) == 1
        for port, others in (
            (openai, (by_http(openai), by_grpc(by_calls))),  # an idle one gives way
            (by_calls, (by_http(openai),)),
            (metrics, (by_http(openai), by_grpc(by_calls))),
            (model, (by_http(openai),)),
        ):
            with idle_callers(port):
                assert await asyncio.gather(*others) == [1] * len(others)
                assert await answers(metrics)
                assert await answers(model_metrics)
        assert await answers(metrics, "/readyz")


async def until_ready(port: int) -> None:
    async with asyncio.timeout(60):
        while not await answers(port, "/readyz"):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.2)


async def test_idle_callers_of_the_scaler_close_no_port_of_it(tmp_path: Path) -> None:
    keda, metrics = free_ports(2)
    environment = told(
        "SCALER",
        KAFKA__ENABLED="false",
        API='{"bind": ""}',
        KEDA__BIND=f"127.0.0.1:{keda}",
        TELEMETRY__METRICS_BIND=f"127.0.0.1:{metrics}",
    )
    with limited("scaler", "aggregator scaler", environment, tmp_path / "scaler.log"):
        await until_ready(metrics)
        with idle_callers(keda), idle_callers(metrics):
            assert await answers(metrics)


@pytest.mark.parametrize(
    ("module", "files", "settings", "warning"),
    [
        ("modelserver", 512, {"ENGINE__KIND": "synthetic"}, (256, 512, 1024)),
        ("aggregator scaler", 200, {}, (50, 64, 640)),
    ],
)
def test_check_says_which_bounds_are_lower(
    module: str, files: int, settings: Mapping[str, str], warning: tuple[int, int, int]
) -> None:
    fewer, bound, needed = warning
    checked = subprocess.run(
        [*limited_to(files), *module.split(), "--check"],
        env=told(module.rpartition(" ")[2].upper(), **settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    line = f"warning: At most {files} files may be open, so each port takes {fewer} connections, not {bound}: "
    assert f"{line}raise the hard limit (ulimit -Hn, LimitNOFILE) to {needed}\n" in checked.stdout
