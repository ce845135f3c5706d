"""Files over an open HTTP port and a store in memory: what is sent, broken off and listed."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.listener import HttpSource
from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.metrics import BatchMetrics
from aggregator.wings.batches.objects import Pointer
from aggregator.wings.batches.routes import BatchRoutes
from aggregator.wings.batches.settings import BatchesSettings
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.integration.frontdoor.test_http import http_door
from tests.unit.aggregator.wings.batches.fake_store import FakeStore
from tests.unit.aggregator.wings.batches.test_lines import line

URL = "/v1/embeddings"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Files:
    """The routes on an open port; `written` are the records."""

    session: aiohttp.ClientSession
    address: str
    store: FakeStore
    written: list[Pointer]

    async def upload(self, data: bytes, **fields: str) -> tuple[int, Any]:
        form = aiohttp.FormData({"purpose": "batch", **fields})
        form.add_field("file", BytesIO(data), filename="a.jsonl")
        async with self.session.post("/v1/files", data=form) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(path) as response:
            return response.status, await response.json()

    async def begin(self, file_id: str) -> Any:
        asked = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h"}
        async with self.session.post("/v1/batches", json=asked) as response:
            return await response.json()


@asynccontextmanager
async def files(**settings: Any) -> AsyncGenerator[Files]:
    async with http_door() as (door, session):
        store, written = FakeStore(), list[Pointer]()

        async def produce(pointers: Sequence[Pointer]) -> None:
            written.extend(pointers)

        desk = Desk(store, BatchesSettings(store="file:///x", **settings), produce, BatchMetrics(MetricsBuffer()))
        service = next(each.service for each in door.pipeline.sources if isinstance(each, HttpSource))
        service.mounted.append(BatchRoutes(service.calls, desk, [URL]))
        yield Files(session, door.http, store, written)


async def test_a_file_comes_back_as_it_was_sent() -> None:
    data = line("a") + b"\n" + bytes(range(256)) * 8192
    async with files() as served:
        status, file = await served.upload(
            data, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}
        )
        assert (status, file["bytes"], file["expires_at"] - file["created_at"]) == (200, len(data), 60)
        async with served.session.get(f"/v1/files/{file['id']}/content") as response:
            assert (await response.read() == data) is True
        assert (await served.get("/v1/files?purpose=batch_output"))[1]["data"] == []


async def test_a_file_above_the_limit_is_refused_while_it_comes() -> None:
    async with files(max_file_bytes=MIB) as served:
        status, answer = await served.upload(b"x" * (MIB + 1000))  # the form as a whole would do
        assert (status, answer["error"]["code"]) == (413, "file_too_large")
        await asyncio.sleep(0.1)
        assert not served.store.kept


async def test_a_form_that_is_compressed_is_refused_as_any_other_body_is() -> None:
    async with files() as served:
        sent = {"content-type": "multipart/form-data; boundary=b", "content-encoding": "gzip"}
        async with served.session.post("/v1/files", data=gzip.compress(b"--b--"), headers=sent) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (415, "unsupported_encoding")


async def test_a_tenant_that_stores_too_much_is_refused() -> None:
    async with files(max_stored_bytes=1000) as served:
        assert (await served.upload(b"x" * 900))[0] == 200
        status, answer = await served.upload(b"x" * 900)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert len([path for path in served.store.kept if path.endswith("data")]) == 1


async def test_an_upload_that_breaks_off_leaves_nothing() -> None:
    async with files() as served:
        host, port = served.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n")
        writer.write(b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
        writer.write(b'content-disposition: form-data; name="file"; filename="a"\r\n\r\nsome')
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        del reader
        assert (await served.upload(line("a")))[0] == 200
        assert len([path for path in served.store.kept if path.endswith("data")]) == 1


async def test_batches_come_page_by_page_and_unknown_paths_are_named() -> None:
    async with files() as served:
        _, file = await served.upload(line("a"))
        made = [(await served.begin(file["id"]))["id"] for _ in range(3)]
        assert [pointer.batch for pointer in served.written] == made
        _, first = await served.get("/v1/batches?limit=2")
        assert (first["has_more"], len(first["data"])) == (True, 2)
        _, rest = await served.get(f"/v1/batches?limit=2&after={first['last_id']}")
        assert (rest["has_more"], len(rest["data"])) == (False, 1)
        assert {each["id"] for each in first["data"] + rest["data"]} == set(made)
        assert (await served.get("/v1/batches?limit=none"))[0] == 400
        status, answer = await served.get("/v1/files/a/b/c")
        assert (status, "/v1/files/{file}/content" in answer["error"]["message"]) == (404, True)
        async with served.session.delete("/v1/batches") as response:
            assert (response.status, response.headers["allow"]) == (405, "GET, POST")


async def test_what_has_no_bound_is_refused_and_not_a_fault() -> None:
    endless = str(10**400)
    async with files() as served:
        expiring = {"expires_after[anchor]": "created_at", "expires_after[seconds]": endless}
        status, answer = await served.upload(line("a"), **expiring)
        assert (status, "seconds from 1 to" in answer["error"]["message"], served.store.kept) == (400, True, {})
        _, file = await served.upload(line("a"))
        after = f'{{"anchor":"created_at","seconds":{endless}}}'
        asked = f'{{"input_file_id":"{file["id"]}","endpoint":"{URL}","output_expires_after":{after}}}'
        async with served.session.post("/v1/batches", data=asked) as response:
            assert (response.status, "from 1 to" in await response.text()) == (400, True)
        assert not served.written
        for path in ("/v1/files", "/v1/batches"):
            status, answer = await served.get(f"{path}?{'&'.join(f'a{each}=1' for each in range(17))}")
            assert (status, "16 query fields" in answer["error"]["message"]) == (400, True)
            assert (await served.get(path))[0] == 200


async def test_a_file_whose_bytes_are_gone_is_not_found() -> None:
    async with files() as served:
        _, file = await served.upload(line("a"))
        for path in [path for path in served.store.kept if path.endswith("data")]:
            del served.store.kept[path]
        status, answer = await served.get(f"/v1/files/{file['id']}/content")
        assert (status, answer["error"]["code"]) == (404, "file_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})],
)
async def test_a_line_of_a_file_does_not_stream(path: str, body: dict[str, Any]) -> None:
    async with http_door() as (door, _):
        http = next(each for each in door.pipeline.sources if isinstance(each, HttpSource))
        defaults = Defaults(http, "minilm", Priority.BACKGROUND)
        _, read = http.service.forms[path]
        message, answer = read(json.dumps(body).encode(), defaults, "r")
        assert (message.request_id, message.final_only, answer.content_type) == ("r", True, "application/json")
        with pytest.raises(FieldError, match="the answer is whole here"):
            read(json.dumps({**body, "stream": True}).encode(), defaults, "r")
