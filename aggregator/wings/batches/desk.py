"""Files and batches of tenants: files are kept, shown, sent and deleted beside the batches that read and write them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from operator import itemgetter
from typing import Any

from aggregator.errors import Code, TokenbatchError
from aggregator.wings.batches.batches import Batches, QuotaReached, gathered, in_turns
from aggregator.wings.batches.objects import (
    HEAD_BYTES,
    WRITTEN,
    FileMeta,
    Kind,
    batch_path,
    data_path,
    file_of,
    meta_path,
    part_path,
)
from aggregator.wings.batches.views import Seen, shown_file, shown_written


class InUse(TokenbatchError):
    """A file that a batch reads cannot be deleted."""

    code = Code.FAILED_PRECONDITION


class Desk(Batches):
    """What the routes and the source ask of the store; `folder` is a tenant's."""

    async def room_bytes(self, folder: str) -> int:
        """Bytes that a tenant may yet store. Raises QuotaReached."""
        stored = 0
        async for each in in_turns(await self.store.list(folder)):
            stored += each.size_bytes
        if stored >= (most := self.settings.max_stored_bytes):
            raise QuotaReached(f"your files and answers take {stored} bytes, of {most}: delete some of them")
        return most - stored

    async def keep_file(self, folder: str, meta: FileMeta) -> dict[str, Any]:
        """Show a file whose data is there."""
        await self._create(meta_path(folder, meta.id), meta)
        self.metrics.uploaded(meta.size_bytes)
        return shown_file(meta)

    async def uploaded(self, folder: str, file_id: str) -> FileMeta | None:
        """An uploaded file; None where there is none, or it has expired."""
        if file_of(file_id) != (file_id, Kind.INPUT):
            return None
        path = meta_path(folder, file_id)
        self.kept.forget(path)  # another aggregator may have deleted it
        meta = await self.load(path, FileMeta)
        if meta is None or not self._has_expired(meta):
            return meta
        await self._delete_expired(folder, [meta])
        return None

    def _has_expired(self, meta: FileMeta) -> bool:
        return 0 < meta.expires_s <= self.now_s()

    async def _delete_expired(self, folder: str, metas: Sequence[FileMeta]) -> None:
        """Those that a batch still reads are hidden alone, and go later."""
        readers = await self._readers(folder) if metas else {}
        for meta in metas:
            if meta.id not in readers:
                await self._delete_uploaded(folder, meta.id)

    async def _readers(self, folder: str) -> dict[str, str]:
        """The files that batches read which are not finished, each with the id of one."""
        return {seen.batch.input_file_id: seen.batch.id for seen in await self._unfinished(folder)}

    async def _delete_uploaded(self, folder: str, file_id: str) -> None:
        paths = [meta_path(folder, file_id), data_path(folder, file_id)]
        self.kept.forget(paths[0])
        await self.store.delete(paths)

    async def file(self, folder: str, file_id: str) -> dict[str, Any] | None:
        """A file as it is shown, uploaded or written by a batch."""
        named = file_of(file_id)
        if named is None:
            return None
        owner, kind = named
        if kind is Kind.INPUT:
            meta = await self.uploaded(folder, file_id)
            return shown_file(meta) if meta is not None else None
        seen = await self.seen(folder, owner)
        return shown_written(seen, kind) if seen is not None else None

    async def files(self, folder: str) -> list[dict[str, Any]]:
        """All files of a tenant, the newest first."""
        listed = in_turns(await self.store.list(f"{folder}/files"))
        paths = [each.path async for each in listed if each.path.endswith("/meta")]
        found = await gathered(self.load(each, FileMeta) for each in paths)
        shown: list[dict[str, Any]] = []
        expired: list[FileMeta] = []
        async for meta in in_turns(found):
            if meta is not None and self._has_expired(meta):
                expired.append(meta)
            elif meta is not None:
                shown.append(shown_file(meta))
        await self._delete_expired(folder, expired)
        async for seen in in_turns((await self.all_seen(folder))[0]):
            shown += filter(None, (shown_written(seen, kind) for kind in WRITTEN))
        return sorted(shown, key=itemgetter("created_at", "id"), reverse=True)

    async def content(self, folder: str, file_id: str) -> AsyncIterator[bytes] | None:
        """The bytes of a file; None where there is none."""
        named = file_of(file_id)
        if named is None:
            return None
        owner, kind = named
        if kind is Kind.INPUT:
            meta = await self.uploaded(folder, file_id)
            return self.store.stream(data_path(folder, file_id), 0, meta.size_bytes) if meta is not None else None
        seen = await self.seen(folder, owner)
        return self._written(folder, seen, kind) if seen is not None and seen.size_bytes(kind) else None

    async def _written(self, folder: str, seen: Seen, kind: Kind) -> AsyncIterator[bytes]:
        """The parts one after another."""
        heads = seen.result.heads if seen.result is not None else [seen.heads[key] for key in sorted(seen.heads)]
        for chunk, head in enumerate(heads):
            start, length = HEAD_BYTES, head.output_bytes
            if kind is Kind.ERRORS:
                start, length = HEAD_BYTES + head.output_bytes, head.size_bytes - head.output_bytes
            async for data in self.store.stream(part_path(folder, seen.batch.id, chunk), start, length):
                yield data

    async def delete_file(self, folder: str, file_id: str) -> bool:
        """Delete a file; whether there was one. Raises QuotaReached for the input of a batch that is not finished."""
        if await self.file(folder, file_id) is None:
            return False
        owner, kind = file_of(file_id) or (file_id, Kind.INPUT)
        if kind is Kind.INPUT:
            if (reader := (await self._readers(folder)).get(file_id)) is not None:
                raise InUse(f"batch {reader} reads this file: cancel the batch first, or wait for its end")
            await self._delete_uploaded(folder, file_id)
            return True
        await self.store.create(batch_path(folder, owner, f"{kind}.gone"), b"")
        await self.seen(folder, owner)
        return True
