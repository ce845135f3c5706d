"""What HTTP itself lets a caller do wrong: each has a named outcome, and neighbours are answered meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aggregator.sources.calls import calls as common
from aggregator.sources.http import calls
from k8s.pod import open_files
from k8s.pod.http.connections import TIMEOUT_S, State
from tests.integration.frontdoor.test_http import embed, http_door
from tests.support.listening import slow_engine
from tests.support.until import until

GZIP = gzip.compress(bytes(1 << 20)) * 1024  # 1 GB
BODY = json.dumps({"input": "rain"}).encode()
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@asynccontextmanager
async def connected(address: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(status.split()[1]), headers, json.loads(body)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(20):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


WRONG = {
    "a body of 100 MB": (HEAD + b"content-length: 100000000\r\n\r\n" + b"x" * 100_000, 413, "request_too_large"),
    "a body of 100 MB in chunks": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"100000\r\n" + bytes(1 << 20) + b"\r\n") * 5,
        413,
        "request_too_large",
    ),
    "gzip that inflates to 1 GB": (
        HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(GZIP) + GZIP,
        415,
        "unsupported_encoding",
    ),
    "chunks that stop": (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab", 408, "request_timeout"),
    "a chunk without a size": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nab\r\n", 400, "bad_request"),
    "a chunk longer than it says": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n",
        400,
        "bad_request",
    ),
    "a body that never comes": (HEAD + b"content-length: 100\r\n\r\n{", 408, "request_timeout"),
    "two lengths": (HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400, "bad_request"),
    "a negative length": (HEAD + b"content-length: -1\r\n\r\n", 400, "bad_request"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_request"),
    "a long header": (HEAD + b"x: " + b"y" * 20_000 + b"\r\n\r\n", 400, "bad_request"),
    "many headers": (
        HEAD + b"".join(b"x%d: y\r\n" % number for number in range(500)) + b"\r\n",
        400,
        "bad_request",
    ),
    "headers that are long together": (
        HEAD + b"".join(b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(20)) + b"\r\n",
        400,
        "bad_request",
    ),
    "long headers that never end": (
        HEAD + b"".join(b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(20)),
        400,
        "bad_request",
    ),
}
"""What is sent, and the status and code of the answer."""


@pytest.mark.parametrize(("sent", "status", "code"), WRONG.values(), ids=WRONG.keys())
async def test_what_is_wrong_on_the_wire_is_named_and_its_connection_closed(
    sent: bytes, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMEOUT_S, State.BODY, 0.5 if code == "request_timeout" else 30.0)
    monkeypatch.setitem(TIMEOUT_S, State.LINGERING, 0.2)
    async with http_door() as (door, session), connected(door.http) as (reader, writer):
        writer.write(sent)
        found, _, body = await answer(reader)
        assert (found, body["error"]["code"]) == (status, code)
        assert await is_closed(reader)
        assert door.figure("tokenbatch.http.responses", status=str(status)) == 1
        assert (await embed(session, {"input": "a"}))[0] == 200
        await until(lambda: door.figure("tokenbatch.calls.held") == door.figure("tokenbatch.calls.open") == 0)


async def test_headers_are_bounded_for_each_request_and_not_for_the_connection() -> None:
    padded = WHOLE.replace(b"host: x", b"host: x\r\ny: " + b"y" * 7000)
    async with http_door() as (door, _), connected(door.http) as (reader, writer):
        for _ in range(5):
            for at in range(0, len(padded), 1500):
                writer.write(padded[at : at + 1500])
                await writer.drain()
                await asyncio.sleep(0.005)
            assert (await answer(reader))[0] == 200
        writer.write(padded * 5)
        assert [(await answer(reader))[0] for _ in range(5)] == [200] * 5


async def test_a_body_of_one_byte_a_second_is_ended_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMEOUT_S, State.BODY, 1.0)
    async with http_door() as (door, session):

        async def drip() -> tuple[int, str]:
            async with connected(door.http) as (reader, writer):
                writer.write(HEAD + b"content-length: 1000\r\n\r\n")
                answered = asyncio.create_task(answer(reader))
                while not answered.done():
                    writer.write(b" ")
                    await asyncio.sleep(0.2)
                status, _, body = answered.result()
                return status, body["error"]["code"]

        slow = [asyncio.create_task(drip()) for _ in range(50)]
        await until(lambda: door.figure("tokenbatch.calls.open") >= 50)
        for _ in range(20):
            assert (await embed(session, {"input": "a"}))[0] == 200
        assert set(await asyncio.gather(*slow)) == {(408, "request_timeout")}


async def test_a_body_with_too_many_texts_is_refused_before_all_of_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMEOUT_S, State.LINGERING, 0.2)
    async with http_door() as (door, session), connected(door.http) as (reader, writer):
        writer.write(HEAD + b'content-length: 4000000\r\n\r\n{"input":[' + b'"a",' * 20_000)
        status, _, body = await answer(reader)
        assert (status, "more than 16384" in body["error"]["message"]) == (400, True)
        assert (await embed(session, {"input": "a"}))[0] == 200


async def test_large_bodies_wait_for_each_other_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_REST", 1e6)  # until then no second one is parsed
    large, wanted = {"input": "rain " * 20_000, "truncate_prompt_tokens": 10}, {"input": "rain"}
    async with http_door() as (_, session):
        assert (await embed(session, large))[0] == 200
        waiting = asyncio.create_task(embed(session, large))
        for _ in range(20):
            assert (await embed(session, wanted))[0] == 200
        assert not waiting.done()
        waiting.cancel()


async def test_large_bodies_are_read_at_a_bounded_rate_and_small_ones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_BYTES_PER_S", 1000.0)
    large, wanted = {"input": "rain " * 400_000, "truncate_prompt_tokens": 10}, {"input": "rain"}
    async with http_door() as (_, session):
        waiting = asyncio.create_task(embed(session, large))
        for _ in range(20):
            assert (await embed(session, wanted))[0] == 200
        assert not waiting.done()
        waiting.cancel()


async def test_a_token_that_is_not_utf8_is_refused_as_any_other_unknown_one(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("team-a secret-of-a\n")
    settings = {"grpc": {"authentication": {"tokens_file": tokens}}}
    async with http_door(settings=settings) as (door, _), connected(door.http) as (reader, writer):
        writer.write(HEAD + b"authorization: Bearer \xff\xfe\r\n" + WHOLE.removeprefix(HEAD))
        status, _, body = await answer(reader)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("name", [b"Authorization", b"x-tenant", b"X-Gateway-Inference-Fairness-Id", b"x-other"])
async def test_headers_that_say_twice_who_calls_are_refused(name: bytes) -> None:
    async with http_door() as (door, _), connected(door.http) as (reader, writer):
        writer.write(HEAD + name + b": Bearer a\r\n" + name.lower() + b": Bearer b\r\n" + WHOLE.removeprefix(HEAD))
        status, _, body = await answer(reader)
        told = body.get("error", {}).get("message", "")
    says = f"{name.decode().lower()} is sent twice, which might name two callers: send it once"
    assert (status, told) == ((200, "") if name == b"x-other" else (400, says))


async def test_a_refused_body_delays_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_BYTES_PER_S", 1000.0)
    monkeypatch.setitem(TIMEOUT_S, State.LINGERING, 0.2)
    body = json.dumps({"input": "rain " * 6700, "truncate_prompt_tokens": 10}).encode()
    async with (
        http_door() as (door, _),
        connected(door.http) as (refused, flood),
        connected(door.http) as (reader, writer),
    ):
        flood.write(HEAD + b"content-length: 100000000\r\n\r\n" + bytes(1 << 20))
        assert (await answer(refused))[0] == 413
        assert await is_closed(refused)
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:32_000])
        await asyncio.sleep(0.2)
        writer.write(body[32_000:])  # only now it is a large one
        assert (await answer(reader))[0] == 200


async def test_two_thousand_idle_connections_hold_up_nobody() -> None:
    async with http_door() as (door, session):
        host, _, port = door.http.rpartition(":")
        # Each has two ends in this process; a few hundred where only 1,024 files may be open.
        most = (open_files.limit() or 10_000) // 2 - 200
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(min(2000, most))]
        assert (await embed(session, {"input": "a"}))[0] == 200
        assert door.figure("tokenbatch.calls.open") == 0
        idle[0][1].write(WHOLE)
        assert (await answer(idle[0][0]))[0] == 200
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connections_are_closed_above_the_limit_and_when_idle_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    monkeypatch.setitem(TIMEOUT_S, State.IDLE, 1.0)
    run(_above_the_limit())
    assert not caplog.records


async def _above_the_limit() -> None:
    async with (
        http_door(slow_engine(slowness=200.0), limits={"max_connections": 2}) as (door, _),
        connected(door.http) as (first, one),
        connected(door.http) as (second, other),
    ):
        one.write(WHOLE)
        other.write(WHOLE)
        await until(lambda: door.figure("tokenbatch.calls.open") == 2)
        async with connected(door.http) as (third, _):
            assert await is_closed(third)
        assert door.figure("tokenbatch.http.closed", reason="crowded") == 1
        assert (await answer(first))[0] == (await answer(second))[0] == 200
        other.write(b"POST /v1/embe")  # headers that take too long
        assert await is_closed(first)
        assert await is_closed(second)


async def test_the_connection_that_is_idle_for_longest_gives_way_to_a_new_one() -> None:
    async with (
        http_door(limits={"max_connections": 2}) as (door, _),
        connected(door.http) as (first, one),
        connected(door.http) as (second, _),
    ):
        one.write(WHOLE)
        assert (await answer(first))[0] == 200
        async with connected(door.http) as (third, writer):
            assert await is_closed(second)
            writer.write(WHOLE)
            assert (await answer(third))[0] == 200
            one.write(WHOLE)
            assert (await answer(first))[0] == 200
        assert door.figure("tokenbatch.http.closed", reason="crowded") == 1


async def test_a_response_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room is free again. Until then its connection is read no further."""
    monkeypatch.setitem(TIMEOUT_S, State.WRITING, 1.0)
    async with http_door() as (door, session), connected(door.http) as (_, writer):
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        body = json.dumps({"input": ["a"] * 2000, "encoding_format": "base64"}).encode()
        large = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        writer.write(large * 100)  # the responses are 100 MB
        await until(lambda: door.figure("tokenbatch.calls.held") > 1_000_000)
        assert (await embed(session, {"input": "a"}))[0] == 200
        await until(lambda: door.figure("tokenbatch.http.closed", reason="unread") == 1)
        await until(lambda: door.figure("tokenbatch.calls.open") == door.figure("tokenbatch.calls.held") == 0)
        assert door.figure("tokenbatch.http.responses", status="200") < 40


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with http_door() as (door, _), connected(door.http) as (reader, writer):
        bodies = [json.dumps({"input": ["a"] * (number + 1)}).encode() for number in range(100)]
        writer.write(b"".join(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body for body in bodies))
        counts = [len((await answer(reader))[2]["data"]) for _ in bodies]
        assert counts == list(range(1, 101))


async def test_http_1_0_is_answered_and_its_connection_closed() -> None:
    async with http_door() as (door, _), connected(door.http) as (reader, writer):
        writer.write(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await answer(reader))[0] == 200
        assert await is_closed(reader)


async def test_who_expects_to_be_asked_for_the_body_is_asked() -> None:
    async with http_door() as (door, _), connected(door.http) as (reader, writer):
        head, _, _ = WHOLE.partition(b"\r\n\r\n")
        writer.write(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await answer(reader))[0] == 200
