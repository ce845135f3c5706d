"""A store in memory, which passes the contract of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from typing_extensions import override

from aggregator.wings.batches.store import Listed, Store, StoreAway


class FakeStore(Store):
    """Names and bytes. `is_away`: nothing answers; `listed`: objects, of all listings."""

    def __init__(self) -> None:
        self.url = "memory"
        self.kept: dict[str, bytes] = {}
        self.is_away = False
        self.listed = 0

    def _check(self) -> None:
        if self.is_away:
            raise StoreAway("the object store is away")

    @override
    async def create(self, path: str, data: bytes | bytearray) -> bool:
        self._check()
        if path in self.kept:
            return False
        self.kept[path] = bytes(data)
        return True

    @override
    async def upload(self, path: str, pieces: AsyncIterator[bytes]) -> None:
        self._check()
        self.kept[path] = b"".join([piece async for piece in pieces])

    @override
    async def read(self, path: str) -> bytes | None:
        self._check()
        return self.kept.get(path)

    @override
    async def read_slice(self, path: str, start: int, length: int) -> bytes | None:
        self._check()
        data = self.kept.get(path)
        return data[start : start + length] if data is not None else None

    @override
    async def exists(self, path: str) -> bool:
        self._check()
        return path in self.kept

    @override
    async def list(self, folder: str, after: str | None = None) -> list[Listed]:
        self._check()
        found: list[Listed] = []
        for place, (path, data) in enumerate(tuple(self.kept.items())):
            if place % 50 == 0:
                await asyncio.sleep(0)  # as a real one, which lists page by page
            if path.startswith(f"{folder}/") and path > (after or ""):
                found.append(Listed(path, len(data)))
        self.listed += len(found)
        return found

    @override
    async def delete(self, paths: Sequence[str]) -> None:
        self._check()
        for path in paths:
            self.kept.pop(path, None)

    @override
    async def sweep(self, before_s: float) -> int:
        del before_s
        return 0
