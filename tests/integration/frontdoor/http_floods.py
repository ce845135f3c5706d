"""Callers over HTTP who send all they can, from a process: `python -m tests.integration.frontdoor.http_floods`."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import uvloop
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def post(path: bytes, body: bytes) -> bytes:
    return HEAD % path + b"content-length: %d\r\n\r\n" % len(body) + body


def half_a_character() -> bytes:
    """900 nested lists, 9,900 texts, and half a surrogate pair at their end."""
    return b'{"input":' + b"[" * 900 + b'"",' * 9_900 + rb'"\ud800"' + b"]" * 900 + b"}"


CALL = post(b"/v1/embeddings", b'{"input":"rain","encoding_format":"base64"}')
CHUNKS = HEAD % b"/v1/embeddings" + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 600_000 + b"0\r\n\r\n"
FLOODS: dict[str, Callable[[], bytes]] = {
    "small requests": lambda: b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 4000,
    "unknown paths": lambda: b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 4000,
    "empty bodies": lambda: post(b"/v1/embeddings", b"{}") * 2000,
    "half a character": lambda: post(b"/v1/embeddings", half_a_character()) * 10,
    "chunks of one byte": lambda: CHUNKS,
    "long prompts": lambda: post(b"/tokenize", b'{"prompt":"%b"}' % (b"a " * 2_000_000)),
    "many tokens": lambda: post(b"/detokenize", b'{"tokens":[%b1]}' % (b"1," * 2_000_000)),
    "connections that are reset": lambda: CALL,
}
"""What each connection sends again and again."""
RESET = "connections that are reset"


@asynccontextmanager
async def flooded(address: str, kind: str, *, connections: int) -> AsyncGenerator[asyncio.subprocess.Process]:
    """While so many connections send one kind without a pause, and read what is answered."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.frontdoor.http_floods", address, kind, str(connections)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline())["connections"] == connections
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def _send_on(address: str, sent: bytes) -> None:
    """Connect, and send until the other side ends it, again and again."""
    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(host, int(port))
            reading = asyncio.create_task(_read_all(reader))
            try:
                while not reading.done():
                    writer.write(sent)
                    await writer.drain()
            finally:
                reading.cancel()
                writer.transport.abort()
        await asyncio.sleep(0.001)


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _reset_on(address: str, sent: bytes) -> None:
    """Connect, call, read the answer's head, and reset the connection, again and again."""
    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await reader.readuntil(b"\r\n\r\n")
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        await asyncio.sleep(0)


async def _main(address: str, kind: str, connections: str) -> None:
    sent = FLOODS[kind]()
    send = _reset_on if kind == RESET else _send_on
    sys.stdout.write(json.dumps({"connections": int(connections)}) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(send(address, sent) for _ in range(int(connections))))


class _Answering(asyncio.Protocol):
    """Answers each piece that comes, whatever it is."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        cast("asyncio.Transport", self._transport).write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve() if sys.argv[1:] == ["server"] else _main(*sys.argv[1:]))
