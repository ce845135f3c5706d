"""The object store: S3, Google's, Azure's or a folder. Names are created once, and read by everyone."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url

from aggregator.errors import Code, TokenbatchError
from k8s.pod.errors import StartError

PIECE_BYTES = 1 << 20
"""Of a stream from the store."""
UPLOAD_BYTES = 8 * 1024 * 1024
"""Of a part of an upload: S3 takes 10,000 of them."""
UPLOADED_AT_ONCE = 2
_TRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
_FOLDER = "file://"


class StoreAway(TokenbatchError):
    """The object store does not answer, or refuses."""

    code = Code.UNAVAILABLE
    retriable = True
    retry_after_s = 1.0


class ObjectGone(StoreAway):
    """An object that was there is not any more: another one deleted it, or a rule of its bucket."""

    code = Code.NOT_FOUND
    retriable = False


class Listed(NamedTuple):
    """An object of a listing."""

    path: str
    size_bytes: int


@contextmanager
def _reported(path: str) -> Generator[None]:
    """Raise StoreAway for what the library raises, without the answer of the store: that may name a secret."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError, ValueError) as error:
        raise StoreAway(f"the object store does not do its part for {path}: {type(error).__name__}") from error


@contextmanager
def nothing_stays(url: str) -> Generator[None]:
    """Remove again the folders that a store made for itself, where they are empty."""
    folder = Path(url.removeprefix(_FOLDER))
    own = (folder, *folder.parents) if url.startswith(_FOLDER) else ()
    made = [each for each in own if not os.path.lexists(each)]
    try:
        yield
    finally:
        with suppress(OSError):
            for each in made:
                each.rmdir()


class Store:
    """One place for all aggregators."""

    def __init__(self, url: str) -> None:
        """Raises StartError for a place that cannot be."""
        self.url = url
        options: dict[str, Any] = {}
        if not url.startswith(_FOLDER):
            options["retry_config"] = _TRIES
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options["client_options"] = {"allow_http": True}
        try:
            if url.startswith(_FOLDER):
                self._store: Any = LocalStore(Path(url.removeprefix(_FOLDER)), mkdir=True, automatic_cleanup=True)
            else:
                self._store = from_url(url, **options)
        except Exception as error:  # its errors of configuration have no common type
            raise StartError(f"batches.store {url}: {error}") from error

    async def create(self, path: str, data: bytes | bytearray) -> bool:
        """Write an object, unless there is one of that name: then False."""
        try:
            with _reported(path):
                await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except StoreAway as error:
            if isinstance(error.__cause__, AlreadyExistsError):
                return False
            raise
        return True

    async def upload(self, path: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an object of any size, of a name that nobody else has."""
        with _reported(path):
            await obstore.put_async(
                self._store, path, pieces, chunk_size=UPLOAD_BYTES, max_concurrency=UPLOADED_AT_ONCE, use_multipart=True
            )

    async def read(self, path: str) -> bytes | None:
        """An object; None where there is none."""
        try:
            with _reported(path):
                return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
        except FileNotFoundError:
            return None

    async def read_slice(self, path: str, start: int, length: int) -> bytes | None:
        """A part of an object, less where that ends; None where there is none."""
        try:
            with _reported(path):
                return bytes(await obstore.get_range_async(self._store, path, start=start, length=length))
        except FileNotFoundError:
            return None

    async def stream(self, path: str, start: int, length: int) -> AsyncGenerator[bytes]:
        """The bytes of a part of an object, in pieces. Raises ObjectGone where there is none."""
        for at in range(start, start + length, PIECE_BYTES):
            data = await self.read_slice(path, at, min(PIECE_BYTES, start + length - at))
            if not data:
                raise ObjectGone("the object is gone")
            yield data

    async def exists(self, path: str) -> bool:
        try:
            with _reported(path):
                await obstore.head_async(self._store, path)
        except FileNotFoundError:
            return False
        return True

    async def list(self, folder: str, after: str | None = None) -> list[Listed]:
        """Every object below a folder, in any order; of those, the ones whose paths sort behind `after`."""
        found: list[Listed] = []
        with _reported(folder):
            async for page in obstore.list(self._store, prefix=f"{folder}/", offset=after):
                found += [Listed(each["path"], each["size"]) for each in page]
        return found

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete those of the objects that there are."""
        for path in paths:
            try:
                with _reported(path):
                    await obstore.delete_async(self._store, path)
            except FileNotFoundError:
                continue

    async def sweep(self, before_s: float) -> int:
        """Delete what uploads left in a folder that were cut off before a time (Unix); returns the files.

        Buckets are left alone: a lifecycle rule does it there.
        """
        if not self.url.startswith(_FOLDER):
            return 0
        with _reported(self.url):
            return await asyncio.to_thread(_sweep, Path(self.url.removeprefix(_FOLDER)), before_s)

    async def probe(self) -> None:
        """Raises StartError for a store that cannot be written, or that creates a name twice."""
        path = f"probe/{secrets.token_hex(16)}"
        try:
            first, second = await self.create(path, b"1"), await self.create(path, b"2")
            kept = await self.read(path)
            await self.delete([path])
        except (StoreAway, FileNotFoundError) as error:
            reason = str(error.__cause__ or error).partition("\n")[0][:300]
            raise StartError(f"batches.store {self.url}: {reason}") from error
        if not first or second or kept != b"1":
            raise StartError(
                f"batches.store {self.url}: it overwrites what is there, and does not refuse: take a store with"
                " conditional writes (If-None-Match), or two aggregators could answer one request"
            )


def _sweep(folder: Path, before_s: float) -> int:
    """Without `meta` an upload was never shown; while it goes on, one of its files changes."""
    swept = 0
    for upload in folder.glob("t/*/files/*"):
        files = [*upload.glob("data*")]
        with suppress(FileNotFoundError):  # another one deletes it
            if (upload / "meta").exists() or any(file.stat().st_mtime > before_s for file in files):
                continue
            for file in files:
                file.unlink()
                swept += 1
            upload.rmdir()
    return swept
