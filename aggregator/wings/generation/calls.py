"""A caller of a text, who reads it as it grows."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from aggregator.request.request import Request
from aggregator.sources.calls.calls import Call
from aggregator.sources.calls.load import Room


class GenerationCall(Call):
    """The origin of a streamed request; a slow caller gets several deltas as one."""

    __slots__ = ("_news", "over", "streams")

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.over = False
        self.streams = False
        self._news = asyncio.Event()

    @override
    def progressed(self) -> None:
        """Wake the caller only if it streams."""
        if self.streams:
            self._news.set()

    @override
    def complete(self, request: Request) -> None:
        self.over = True
        self._news.set()

    async def news(self) -> None:
        """Wait until the text has grown or the request is complete."""
        await self._news.wait()
        self._news.clear()
