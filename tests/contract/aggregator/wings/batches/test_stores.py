"""A folder, a server of S3's API and the store in memory of the tests keep the same contract."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from aggregator.wings.batches.parts import try_store
from aggregator.wings.batches.store import Listed, ObjectGone, Store, StoreAway
from k8s.pod.errors import StartError
from loadtest.stack.child import Child
from loadtest.stack.part import python_of
from loadtest.stack.ports import free_ports
from tests.unit.aggregator.wings.batches.fake_store import FakeStore

BUCKET = "bucket"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of S3's API with a bucket."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [str(python_of("stores")), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Child("moto", command, tmp_path_factory.mktemp("s3") / "log", {})
    try:
        for _ in range(300):
            try:
                request = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")  # noqa: S310 - of this machine
                with urllib.request.urlopen(request, timeout=5):  # noqa: S310
                    break
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        yield address
    finally:
        server.kill()


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=pytest.mark.privileged)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind in turn."""
    if request.param == "memory":
        return FakeStore()
    if request.param == "folder":
        return Store(f"file://{tmp_path}/made/by/it")
    told = {"AWS_ENDPOINT_URL": request.getfixturevalue("s3"), "AWS_REGION": "us-east-1"}
    for name, value in {**told, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    return Store(f"s3://{BUCKET}/{tmp_path.name}")


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def test_a_name_is_created_once(store: Store) -> None:
    made = await asyncio.gather(*(store.create("a/b", b"%d" % each) for each in range(8)))
    assert sum(made) == 1
    assert await store.read("a/b") == b"%d" % made.index(True)
    await store.probe()


async def test_what_is_not_there_is_none(store: Store) -> None:
    assert await store.read("a") is None
    assert await store.read_slice("a", 0, 5) is None
    assert not await store.exists("a")
    assert await store.list("a") == []
    await store.delete(["a"])
    with pytest.raises(ObjectGone):
        await anext(store.stream("a", 0, 5))


async def test_a_slice_ends_where_its_object_ends(store: Store) -> None:
    await store.create("a", bytearray(b"0123456789"))
    assert await store.read_slice("a", 2, 3) == b"234"
    assert await store.read_slice("a", 8, 100) == b"89"


async def test_an_upload_in_pieces_is_one_object(store: Store) -> None:
    data = [bytes([each]) * 3_000_000 for each in range(7)]
    await store.upload("big/data", pieces(*data))
    assert b"".join([piece async for piece in store.stream("big/data", 1, 20_999_999)]) == b"".join(data)[1:]


async def test_a_listing_has_every_object_below_a_folder(store: Store) -> None:
    for name in ("f/b", "f/a/x", "fg"):
        await store.create(name, b"12")
    assert sorted(await store.list("f")) == [Listed("f/a/x", 2), Listed("f/b", 2)]
    await store.delete(["f/b"])
    assert await store.list("f") == [Listed("f/a/x", 2)]


async def test_a_listing_begins_behind_a_path(store: Store) -> None:
    for name in ("f/1/a", "f/2/a", "f/2/b", "f/3/a"):
        await store.create(name, b"12")
    assert sorted(each.path for each in await store.list("f", "f/2")) == ["f/2/a", "f/2/b", "f/3/a"]
    assert sorted(each.path for each in await store.list("f", "f/2/a")) == ["f/2/b", "f/3/a"]


class Overwriting(FakeStore):
    """Takes every write, as a store without conditional writes does."""

    @override
    async def create(self, path: str, data: bytes | bytearray) -> bool:
        self.kept[path] = bytes(data)
        return True


async def test_a_store_that_overwrites_is_refused() -> None:
    with pytest.raises(StartError, match="take a store with conditional writes"):
        await Overwriting().probe()


def test_a_check_of_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    asyncio.run(try_store(f"file://{tmp_path}/never/made", 5.0))
    assert [*tmp_path.iterdir()] == []
    own = tmp_path / "own"
    own.mkdir()
    asyncio.run(try_store(f"file://{own}", 5.0))
    assert [*tmp_path.rglob("*")] == [own]


async def test_a_store_that_is_away_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StartError, match=r"batches\.store"):
        await Store(f"file://{tmp_path}/file").probe()


async def test_a_folder_is_swept_of_what_cut_off_uploads_left(tmp_path: Path) -> None:
    kept, going, left = (tmp_path / f"t/me/files/{each}" for each in ("file-1", "file-2", "file-3"))
    for folder, names in ((kept, ("data", "meta")), (going, ("data#1",)), (left, ("data#1", "data#2"))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"x")
            os.utime(folder / name, (100.0, 100.0))
    os.utime(going / "data#1", (300.0, 300.0))
    store = Store(f"file://{tmp_path}")
    assert await store.sweep(200.0) == 2
    assert (kept.exists(), going.exists(), left.exists()) == (True, True, False)
    assert await store.sweep(200.0) == 0


async def test_an_object_that_lost_its_bytes_is_named(tmp_path: Path) -> None:
    """As one that was written when the power failed."""
    (tmp_path / "part").touch()
    with pytest.raises(StoreAway, match=rf"does not do its part for {tmp_path.name}/part: \w+$"):
        await Store(f"file://{tmp_path.parent}").read_slice(f"{tmp_path.name}/part", 0, 5)
