"""Print what attacks over HTTP cost a neighbour.

python -m tests.integration.frontdoor.http_neighbours [SECONDS [ATTACK ...]]

An aggregator and a model server without a model are processes; each attack is another one. The neighbour calls one by
one on a separate connection: a question over HTTP, then one over gRPC. Floods are also sent to a sink, a process that
reads and drops them: that shows how long a neighbour waits only because both take processor time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import grpc.aio
import numpy as np
import uvloop
from typing_extensions import override

from loadtest.stack.ports import free_ports
from loadtest.stack.service import without_kafka
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.processes import synthetic

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"


def sized(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


SENT = {
    "chunks without an end": HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * 70,
    "3,000 inputs": sized(json.dumps({"input": ["a"] * 3000}).encode()),
    "4 MB of empty inputs": sized(json.dumps({"input": [""] * 1_000_000}).encode()),
    "a key 300,000 times": sized(b"{" + b'"input":"a",' * 300_000 + b'"input":"a"}'),
    "chunks with a lie": HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n",
}
"""Each of four connections at a time sends this once, and reads until it is closed, or until an answer has come."""
ATTACKS = ["nobody", *SENT]


async def once(host: str, port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


class Sink(asyncio.BufferedProtocol):
    """Drops what comes, and answers once `size` bytes have come."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._buffer = bytearray(1 << 18)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left <= 0:
            self._left = self._size
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def drop(name: str, host: str, port: int) -> None:
    """What the process of the sink does."""
    server = await asyncio.get_running_loop().create_server(lambda: Sink(len(SENT[name])), host, port)
    await server.serve_forever()


async def attack(name: str, host: str, port: int, seconds: float) -> None:
    """What the process of an attacker does."""
    end_s = time.monotonic() + seconds

    async def again() -> None:
        while time.monotonic() < end_s:
            await once(host, port, SENT[name])

    await asyncio.gather(*(again() for _ in range(4)))


async def latencies_ms(call: Callable[[], Awaitable[object]], running: asyncio.Future[Any]) -> list[float]:
    """Of calls one by one, until then."""
    took: list[float] = []
    while not running.done():
        began_s = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began_s) * 1e3)
        await asyncio.sleep(0.005)
    return took


async def measure(http: str, address: str, seconds: float, names: Sequence[str]) -> None:
    host, _, port = http.rpartition(":")
    host = host.replace("localhost", "127.0.0.1")
    async with (
        aiohttp.ClientSession(f"http://{http}", raise_for_status=True) as session,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = pb_grpc.EmbeddingsStub(channel)

        async def over_http() -> None:
            async with session.post("/v1/embeddings", json={"input": "rain"}) as response:
                await response.read()

        async def by_grpc() -> None:
            await stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="rain")]))

        async def during(*command: str) -> str:
            """Median and 99th percentile over HTTP and by gRPC while an attacker runs."""
            process = await _started(*command) if command else None
            waiting = asyncio.sleep(seconds) if process is None else process.wait()
            running: asyncio.Future[Any] = asyncio.ensure_future(waiting)
            found = await asyncio.gather(latencies_ms(over_http, running), latencies_ms(by_grpc, running))
            return " | ".join(f"{np.quantile(took, 0.5):.0f}, {np.quantile(took, 0.99):.0f}" for took in found)

        sys.stdout.write("| attack | HTTP p50, p99 ms | gRPC p50, p99 ms | the same, while a sink is attacked | |\n")
        sys.stdout.write("|---|---|---|---|---|\n")
        for name in names:
            beside = " | "
            if name != "nobody":
                (free,) = free_ports(1)
                sink = await _started("sink", name, host, str(free))
                beside = await during("attack", name, host, str(free), str(seconds))
                sink.kill()
                await sink.wait()
            shown = await (during() if name == "nobody" else during("attack", name, host, port, str(seconds)))
            sys.stdout.write(f"| {name} | {shown} | {beside} |\n")
            sys.stdout.flush()


async def _started(*arguments: str) -> asyncio.subprocess.Process:
    """This program as another process, once it has started."""
    module = "tests.integration.frontdoor.http_neighbours"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments)
    await asyncio.sleep(1.0)
    return process


def main(seconds: float, names: Sequence[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    with (
        synthetic(folder / "server.log", SYNTHETIC__FIXED_S="0.005") as server,
        without_kafka(folder / "aggregator.log", model=server.model, servers=[server.address]) as front,
    ):
        asyncio.run(measure(front.http_address, front.address, seconds, names))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sink", name, host, port]:
            uvloop.run(drop(name, host, int(port)))
        case ["attack", name, host, port, seconds]:
            asyncio.run(attack(name, host, int(port), float(seconds)))
        case [seconds, *names]:
            main(float(seconds), names or ATTACKS)
        case _:
            main(6.0, ATTACKS)
