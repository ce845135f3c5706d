"""What cannot be decoded is answered like any other mistake, and logs tell nobody's secrets, nor without end."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from aggregator.request.kind import Kind
from aggregator.request.request import Request
from aggregator.sources.calls.calls import Calls
from k8s.pod import logs
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.listening import Listening, ask, listening, refused
from tests.support.until import until
from tests.support.written_logs import written_logs

GRPC = (b"content-type", b"application/grpc")
EMBED, STREAM = "/embedding.v1.Embeddings/Embed", "/embedding.v1.Embeddings/EmbedStream"
NAMED = b"\x0a\x03odd"  # its request_id
BROKEN = {
    "not UTF-8": NAMED + b"\x22\x03\x0a\x01\xff",
    "truncated": NAMED + b"\x22\x7f\x0a\x01a",
    "bad wire type": NAMED + b"\x07",
    "groups in groups": NAMED + b"\x0b" * 200 + b"\x0c" * 199,
    "number without end": NAMED + b"\x38" + b"\xff" * 11,
    "large": NAMED + b"\x22\x03\x0a\x01a" * 1000 + b"\x1a\xff\xff\x03" + b"r" * 65_535 + b"\x07",
}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    with written_logs("aggregator") as stream:
        yield stream


@pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN)
async def test_a_call_that_cannot_be_decoded_is_an_invalid_argument(message: bytes, written: io.StringIO) -> None:
    async with listening() as door:
        embed: Any = door.channel.unary_unary(EMBED)
        error = await refused(embed(message), grpc.StatusCode.INVALID_ARGUMENT)
        assert "embedding.v1.EmbedRequest" in (error.details() or "")
    assert all(json.loads(line)["level"] == "info" for line in written.getvalue().splitlines())


async def test_a_stream_answers_what_it_cannot_decode_and_goes_on() -> None:
    async with listening() as door:
        stream: Any = door.channel.stream_stream(STREAM)()
        for message in BROKEN.values():
            await stream.write(message)
        await stream.write(ask("rain", request_id="good").SerializeToString())
        await stream.done_writing()
        answers = [pb.EmbedResponse.FromString(answer) async for answer in stream]
    codes = sorted((answer.request_id, answer.status.code) for answer in answers)
    assert codes == [("good", 0), *[("odd", 3)] * len(BROKEN)]
    assert "embedding.v1.EmbedRequest" in answers[0].status.message


async def test_an_id_without_end_is_cut_in_the_answer_to_a_refused_request() -> None:
    async with listening() as door:
        answers = [answer async for answer in door.stub.EmbedStream(iter([ask("", request_id="i" * 1_000_000)]))]
        empty = pb.EmbedRequest(request_id="i" * 1_000_000)
        answers += [answer async for answer in door.stub.EmbedStream(iter([empty]))]
    assert [answer.status.code for answer in answers] == [3, 3]
    assert answers[1].request_id == "i" * 1024


@pytest.mark.parametrize("name", ["m" * 100_000, "模" * 30_000, "\U0001f327" * 20_000])
@pytest.mark.parametrize("field", ["model", "model_revision"])
async def test_a_name_without_end_is_not_sent_back_whole(field: str, name: str) -> None:
    async with listening() as door:
        error = await refused(door.stub.Embed(ask("rain", **{field: name})), grpc.StatusCode.NOT_FOUND)
        assert len(error.details() or "") < 300
        assert name[:20] in (error.details() or "")


async def test_a_header_that_is_not_utf_8_is_not_logged_with_its_credential(written: io.StringIO) -> None:
    async with listening() as door:
        await call_raw(door, (b"authorization", b"Bearer a-secret\xff"))
        await until(lambda: "Invalid encoding" in written.getvalue())
        for _ in range(100):
            await call_raw(door, (b"authorization", b"Bearer a-secret\xff"))
        await door.stub.Embed(ask("rain"))
    assert "a-secret" not in written.getvalue()
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len([line for line in lines if line["logger"].startswith("grpc")]) <= logs.Restraint.LINES


def frame(kind: int, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    """A frame of HTTP/2, as no gRPC library would send it."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def header(name: bytes, value: bytes) -> bytes:
    """A header of HPACK, spelled out; both at most 126 bytes long."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


async def call_raw(door: Listening, *metadata: tuple[bytes, bytes]) -> None:
    """Send a call's headers with such bytes, and wait for what comes back."""
    reader, writer = await asyncio.open_connection(*door.address.split(":"))
    told = ((b":path", EMBED.encode()), (b":authority", b"here"), (b"te", b"trailers"), GRPC, *metadata)
    headers = b"\x83\x86" + b"".join(header(name, value) for name, value in told)  # POST, http
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4) + frame(1, 4, 1, headers))
    await reader.read(9)
    await asyncio.sleep(0.01)
    writer.close()


async def test_the_core_of_grpc_writes_nothing_of_its_own() -> None:
    program = (
        "import asyncio; from tests.support.listening import ask, listening\n"
        "async def main():\n"
        "    async with listening() as door: await door.stub.Embed(ask('rain')); await door.server.stop(0)\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE)
    _, written = await process.communicate()
    assert process.returncode == 0
    assert b".cc:" not in written  # by itself it tells of each GOAWAY


async def test_an_unforeseen_fault_is_told_and_logged_without_its_words(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Calls.take

    def broken(calls: Calls, kind: Kind, data: bytes, *about: Any) -> Request:
        if b"strange" in data:
            raise ZeroDivisionError("strange text")
        return take(calls, kind, data, *about)

    monkeypatch.setattr(Calls, "take", broken)
    async with listening() as door:
        for _ in range(50):
            await refused(door.stub.Embed(ask("strange")), grpc.StatusCode.INTERNAL)
        asked = (ask("strange", request_id="1"), ask("rain", request_id="2"))
        answers = [answer async for answer in door.stub.EmbedStream(iter(asked))]
    assert sorted((answer.request_id, answer.status.code) for answer in answers) == [("1", 13), ("2", 0)]
    assert "strange" not in written.getvalue()
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    told = [line for line in lines if line["event"] == "a call failed"]
    assert 0 < len(told) <= logs.Restraint.LINES
    assert told[0]["error"] == "ZeroDivisionError"
    assert told[0]["at"].startswith("test_undecodable.py:")
