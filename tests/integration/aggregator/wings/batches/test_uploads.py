"""Uploads of any size stream through the aggregator into the store, and hold a bounded part of its memory."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from openai import APIStatusError

from tests.integration.aggregator.wings.batches.conftest import Office, Offices, client_of, lines

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(500)]

MIB = 1024 * 1024
FILE_MIB = int(os.environ.get("UPLOAD_MIB", "192"))
MOST_MORE_BYTES = 150 * MIB
BOUNDARY = "b"
HEAD = (
    f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
).encode()
END = f"\r\n--{BOUNDARY}--\r\n".encode()


def form(mebibytes: int) -> Iterator[bytes]:
    """A form with a file of so many MiB."""
    yield HEAD
    for _ in range(mebibytes):
        yield b"x" * (MIB - 1) + b"\n"
    yield END


def upload(address: str, mebibytes: int) -> int:
    """Send a file; the status of the answer."""
    size = len(HEAD) + mebibytes * MIB + len(END)
    headers = {
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        "content-length": str(size),
        "x-tenant": "me",
    }
    with closing(http.client.HTTPConnection(address, timeout=300)) as connection:
        connection.request("POST", "/v1/files", form(mebibytes), headers)
        response = connection.getresponse()
        response.read()
        return response.status


def test_a_large_upload_takes_little_memory(offices: Offices) -> None:
    process = offices.start()
    office = Office(client_of(process.http_address))
    office.client.embeddings.create(model="minilm", input="warm")
    memory = psutil.Process(process.pid).memory_info
    before, highest = memory().rss, 0
    statuses: list[int] = []
    sending = threading.Thread(target=lambda: statuses.append(upload(process.http_address, FILE_MIB)))
    sending.start()
    while sending.is_alive():  # and live calls are answered meanwhile
        office.client.embeddings.create(model="minilm", input="beside it")
        highest = max(highest, memory().rss)
    assert statuses == [200]
    assert highest - before < MOST_MORE_BYTES
    (file,) = [each for each in office.client.files.list() if each.filename == "large.jsonl"]
    assert file.bytes == FILE_MIB * MIB
    assert office.client.files.delete(file.id).deleted


def test_a_file_beyond_the_limit_is_refused_and_nothing_of_it_stays(offices: Offices) -> None:
    process = offices.start({"BATCHES__MAX_FILE_BYTES": str(8 * MIB)})
    stored = {*Path(offices.store).rglob("data")}
    with pytest.raises((http.client.HTTPException, OSError, AssertionError)):
        assert upload(process.http_address, 24) == 200
    office = Office(client_of(process.http_address))
    with pytest.raises(APIStatusError, match=r"larger than|more than"):
        office.client.files.create(file=("a.jsonl", b"x" * (9 * MIB)), purpose="batch")
    assert {*Path(offices.store).rglob("data")} == stored


def test_a_caller_that_leaves_leaves_nothing(offices: Offices) -> None:
    process = offices.start()
    stored = {*Path(offices.store).rglob("data")}
    connection = http.client.HTTPConnection(process.http_address, timeout=60)
    connection.putrequest("POST", "/v1/files")
    connection.putheader("content-type", f"multipart/form-data; boundary={BOUNDARY}")
    connection.putheader("content-length", str(10**9))
    connection.endheaders()
    for _, data in zip(range(20), form(20), strict=False):
        connection.send(data)
    connection.close()
    office = Office(client_of(process.http_address))
    batch = office.ended(office.begin(lines(3)))  # others go on
    assert batch.status == "completed"
    assert len({*Path(offices.store).rglob("data")} - stored) == 1
