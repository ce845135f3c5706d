"""Floods of HTTP/2 frames, in a process of their own: `python -m tests.integration.frontdoor.h2_floods KIND ...`."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from protos.embedding.v1 import embedding_pb2 as pb

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM_AT = 5  # of a frame's head
_STREAMS_A_BLOCK = 100
_LAST_STREAM = 2**31 - 1

EMBED = "/embedding.v1.Embeddings/Embed"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
UNKNOWN = "/no.such.Service/Method"


def message(data: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + struct.pack(">I", len(data)) + data


EMBED_ONE = message(pb.EmbedRequest(inputs=[pb.Input(text="rain")]).SerializeToString())
LIST_SERVICES = message(b"\x3a\x00")


def head(path: str, *, metadata: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ("END_HEADERS",)) -> Frame:
    """A call's HEADERS, encoded without reference to earlier ones."""
    encoder = Encoder()
    encoder.header_table_size = 0
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    return HeadersFrame(1, encoder.encode(fields), flags=list(flags))


def data(payload: bytes) -> Frame:
    return DataFrame(1, payload, flags=["END_STREAM"])


_CALLS: dict[str, list[Frame]] = {
    "embed and reset": [head(EMBED), data(EMBED_ONE), RstStreamFrame(1, 8)],
    "head and reset": [head(EMBED), RstStreamFrame(1, 8)],
    "embed": [head(EMBED), data(EMBED_ONE)],
    "unknown method": [head(UNKNOWN), data(EMBED_ONE)],
    "reflection": [head(REFLECTION), data(LIST_SERVICES)],
    "wrong message": [head(EMBED), data(message(b"\xff"))],
    "health": [head("/grpc.health.v1.Health/Check"), data(message(b""))],
    "list models": [head("/embedding.v1.Embeddings/ListModels"), data(message(b""))],
    "long token": [
        head(EMBED, metadata=(("authorization", "Bearer eyJhbGciOiJSUzI1NiJ9." + "e" * 11_900 + ".x"),)),
        data(EMBED_ONE),
    ],
}
_FRAMES: dict[str, bytes] = {
    "settings": SettingsFrame(0, {SettingCodes.INITIAL_WINDOW_SIZE: 65_535}).serialize(),
    "ping": PingFrame(0, b"12345678").serialize(),
    "priority": PriorityFrame(1, stream_weight=3).serialize(),
    "window update": WindowUpdateFrame(0, 1).serialize(),
    "empty data": DataFrame(1, b"").serialize(),
    "continuation": ContinuationFrame(1, b"\x00\x01a\x01b").serialize(),
    "empty continuation": ContinuationFrame(1, b"").serialize(),
}
KINDS = (*_CALLS, *_FRAMES)


class _Blocks:
    """Calls in blocks of a hundred, each on a stream of its own."""

    def __init__(self, frames: list[Frame], streams: int = _STREAMS_A_BLOCK) -> None:
        self._at: list[int] = []
        block = bytearray()
        for _ in range(streams):
            for frame in frames:
                self._at.append(len(block) + _STREAM_AT)
                block += frame.serialize()
        self._block, self._a_stream = block, len(frames)

    def __iter__(self) -> Iterator[bytes]:
        stream = 1
        while stream < _LAST_STREAM:
            for number, at in enumerate(self._at):
                struct.pack_into(">I", self._block, at, stream + 2 * (number // self._a_stream))
            stream += 2 * (len(self._at) // self._a_stream)
            yield bytes(self._block)


def _blocks(kind: str) -> Iterator[bytes]:
    if kind in _CALLS:
        yield from _Blocks(_CALLS[kind])
        return
    frame = _FRAMES[kind]
    if "continuation" in kind:
        yield HeadersFrame(1, b"").serialize()
    elif kind == "empty data":
        yield head(EMBED).serialize()
    block = frame * max(1, 16_384 // len(frame))
    while True:
        yield block


async def _connect(address: str, source: str, window: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    settings = SettingsFrame(0, {SettingCodes.INITIAL_WINDOW_SIZE: window})
    writer.write(_PREFACE + settings.serialize() + SettingsFrame(0, flags=["ACK"]).serialize())
    return reader, writer


async def _discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    received = 0
    with suppress(OSError):
        while block := await reader.read(2**18):
            received += len(block)
            if received > 2**14:
                writer.write(WindowUpdateFrame(0, received).serialize())
                received = 0
    writer.transport.abort()


async def _flood(kind: str, address: str, source: str, end_s: float) -> tuple[int, int]:
    """Send until then, again on a new connection where one is closed; bytes sent, and connections."""
    sent = connections = 0
    while time.monotonic() < end_s:
        connections += 1
        with suppress(OSError):
            reader, writer = await _connect(address, source, 65_535)
            discarding = asyncio.create_task(_discard(reader, writer))
            with suppress(TimeoutError):
                async with asyncio.timeout(end_s - time.monotonic()):
                    for block in _blocks(kind):
                        writer.write(block)
                        sent += len(block)
                        await writer.drain()
            discarding.cancel()
            writer.transport.abort()
        await asyncio.sleep(0)
    return sent, connections


async def _unread(address: str, source: str, calls: int, end_s: float) -> tuple[int, int]:
    """Calls whose answers may not be sent, because their windows are empty."""
    _, writer = await _connect(address, source, 0)
    block = next(iter(_Blocks(_CALLS["embed"], calls)))
    writer.write(block)
    await asyncio.sleep(end_s - time.monotonic())
    writer.transport.abort()
    return len(block), 1


async def _main(address: str, kind: str, connections: str, seconds: str, source: str = "127.0.0.2") -> None:
    end_s = time.monotonic() + float(seconds)
    name, _, calls = kind.partition(" × ")
    each = (
        _unread(address, source, int(calls), end_s) if calls else _flood(name, address, source, end_s)
        for _ in range(int(connections))
    )
    results = await asyncio.gather(*each)
    sent, opened = (sum(column) for column in zip(*results, strict=True))
    sys.stdout.write(json.dumps({"bytes": sent, "connections": opened}))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
