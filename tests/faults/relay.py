"""A TCP relay between two parts: it can take its time, or say nothing at all, as a network may."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024


class Relay:
    """Listens on a free port of this machine and passes on to another; `delay_s` holds each way, `cut` stops both.

    A cut keeps connections open and swallows nothing: what is sent meanwhile arrives when it is mended.
    """

    def __init__(self, to_port: int = 0, port: int = 0) -> None:
        self.to_port = to_port
        self.port = port
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def cut(self) -> None:
        """Pass nothing on, and take no new connection further."""
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def reset(self) -> None:
        """End every connection there is, as a firewall or a proxy does that forgets them."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "localhost", self.port or None)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("localhost", self.to_port)
            both = {writer, far_writer}
            self._writers |= both
            try:
                await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
            finally:
                self._writers -= both
                far_writer.close()
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One way of one connection: every piece arrives `delay_s` after it came, however many are on their way."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1000)

        async def read() -> None:
            while True:
                data = await reader.read(_CHUNK_BYTES)
                await under_way.put((loop.time() + self.delay_s, data))
                if not data:
                    return

        async def write() -> None:
            while True:
                due_s, data = await under_way.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                await self._open.wait()
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        await asyncio.gather(read(), write())
