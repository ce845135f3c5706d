"""What a connection makes of bytes: it reads requests as aiohttp's parser does, or refuses them, within bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpRequestParser

from aggregator.observability.calls import CallTelemetry
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.sources.http.calls import Connections
from aggregator.sources.http.connection import Connection
from aggregator.sources.http.exchange import Exchange, Responses
from aggregator.sources.http.service import OpenAIService
from k8s.pod.metrics_buffer import MetricsBuffer

POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
Seen = tuple[str, bytes, dict[bytes, bytes], bytes, bool]
"""Method, target, headers, body, and whether the connection goes on."""


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = self.is_paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Service:
    """Answers each request once `goes_on`, and keeps what it was."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.goes_on = goes_on
        self.calls = self
        self.responses = Responses(CallTelemetry(Tracing(), Metrics(MetricsBuffer())))
        self.served: list[Exchange] = []
        self.seen: list[Seen] = []

    def open(self, exchange: Exchange) -> None:
        exchange.serve = self.serve

    def received(self, exchange: Exchange) -> float:
        del exchange
        return 0.0

    def discarded(self, size_bytes: int) -> float:
        del size_bytes
        return 0.0

    def serve(self, exchange: Exchange) -> None:
        self.served.append(exchange)
        self.seen.append((exchange.method, exchange.url, exchange.headers, exchange.take_body(), exchange.keeps_alive))
        if self.goes_on:
            exchange.answer(200, b"{}", {})


class Alone:
    """A connection that no other one is beside."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.service = Service(goes_on=goes_on)
        self.wire = Wire()
        self.connection = Connection(cast("OpenAIService", self.service), cast("Connections", self))
        self.connection.connection_made(cast("asyncio.Transport", self.wire))

    def enter(self, _: Connection) -> bool:
        return True

    def leave(self, _: Connection) -> None: ...

    def set_busy(self, _: Connection) -> None: ...

    def set_idle(self, _: Connection) -> None: ...

    def send(self, *pieces: bytes) -> list[Seen]:
        for piece in pieces:
            self.connection.data_received(piece)
        return self.service.seen

    @property
    def statuses(self) -> list[int]:
        return [int(each[:3]) for each in self.wire.written.split(b"HTTP/1.1 ")[1:]]


METHODS = [b"GET", b"POST", b"HEAD"], [b"get", b"P\xffST", b"OPTIONS", b"M-SEARCH"]
TARGETS = [b"/", b"/v1/models/a%2Fb?x=1", b"http://h/x"], [b"/\xc3\xa9", b"/a b", b"/#f", b""]
VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0"], [b"HTTP/1.2", b"HTTP/11.1", b"http/1.1", b""]
HOSTS = [b"host: x"], [b"x: y", b"host: x\r\nhost: y"]
LINES = (
    [b"x: a\tb", b"x:", b"x: \xff\xfe", b"expect: 100-continue", b"accept: */*", b"connection: keep-alive"],
    [
        *(b"connection: " + each for each in (b"close", b"upgrade\r\nupgrade: h2c")),
        *(b"x :b", b": v", b"x", b" folded", b"x: a\x00b", b"x: a\x01", b"x\xc3: v"),
        *(b"content-length:" + each for each in (b" 3", b" 5", b"")),
        b"transfer-encoding: chunked",
    ],
)
ENDS = [b"\r\n"], [b"\n", b"\r", b"\n\r", b"\r\r\n"]
CHUNKS = (
    [b"3\r\nabc", b"3;e=1\r\nabc", b"03\r\nabc", b"A\r\n0123456789"],
    [
        *(b"3\nabc", b"3 \r\nabc", b"+3\r\nabc", b"0x3\r\nabc", b"3\r\nabcd", b"2\r\nabc", b"f" * 17 + b"\r\n"),
    ],
)
CODINGS = (
    [b"chunked", b"Chunked"],
    [b"chunked, gzip", b"gzip, chunked", b"\x0bchunked", b"identity", b"chunked, chunked"],
)
LENGTHS = [b"3", b"03"], [b"+3", b"3, 3", b"", b"-1", b"0x3", b"3 3", b"4", b"2", b"9" * 23]


def some_requests(chance: random.Random) -> bytes:
    """A few requests, half of them with a fault."""

    def pick(choices: tuple[list[bytes], list[bytes]]) -> bytes:
        right, wrong = choices
        return chance.choice(wrong if chance.random() < 0.05 else right)

    made = b""
    for _ in range(chance.randint(1, 4)):
        lines = [b" ".join([pick(METHODS), pick(TARGETS), pick(VERSIONS)]), pick(HOSTS)]
        lines += [pick(LINES) for _ in range(chance.randint(0, 2))]
        body = b""
        framing = chance.randrange(3)
        if framing == 1:
            lines.append(b"content-length: " + pick(LENGTHS))
            body = b"abc"
        elif framing == 2:
            lines.append(b"transfer-encoding: " + pick(CODINGS))
            body = pick(CHUNKS) + b"\r\n0\r\n\r\n"
        made += b"".join(each + pick(ENDS) for each in (*lines, b"")) + body
    if chance.random() < 0.1:
        place = chance.randrange(len(made))
        made = made[:place] + bytes([chance.randrange(256)]) + made[place + 1 :]
    return made


def cut(data: bytes, chance: random.Random) -> Sequence[bytes]:
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice([0, 0, 1, 3])))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if start < end]


def by_aiohttp(data: bytes, loop: asyncio.AbstractEventLoop) -> list[Seen]:
    """What its parser reads before a fault: byte by byte, since it gives up all that came with one."""
    parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, auto_decompress=False)
    found: list[Any] = []
    try:
        for byte in data:
            found += parser.feed_data(bytes([byte]))[0]
    except BadHttpMessage:
        pass
    seen: list[Seen] = []
    for message, body in found:
        if body.is_eof() and body.exception() is None:
            headers = {name.lower(): value for name, value in reversed(message.raw_headers)}
            target = (message.path or "").encode(errors="surrogateescape")
            seen.append((message.method, target, headers, body.read_nowait(-1), not message.should_close))
            if message.should_close:
                break
    return seen


async def test_requests_are_read_as_aiohttp_reads_them() -> None:
    """It refuses a few more: versions without a blank before them, tunnels, and codings beside chunks."""
    served = 0
    for seed in range(1500):
        chance = random.Random(seed)
        data = some_requests(chance)
        found = Alone().send(*cut(data, chance))
        expected = by_aiohttp(data, asyncio.get_running_loop())
        assert found == expected[: len(found)], (seed, data)
        if len(found) < len(expected):
            _, target, headers, *_ = expected[len(found)]
            is_coded = headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked"
            assert is_coded or b"HTTP/" in target or b"upgrade" in headers, (seed, data)
        served += len(found)
    assert served > 1000


async def test_a_body_behind_an_upgrade_that_is_not_taken_is_read_as_a_body() -> None:
    """As Java's client sends its first request: with an offer of HTTP/2."""
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    hidden = b"GET / HTTP/1.1\r\nhost: evil\r\n\r\n"
    whole = POST + upgrade + b"content-length: %d\r\n\r\n" % len(hidden) + hidden
    for pieces in ([whole * 2], [bytes([byte]) for byte in whole * 2]):
        alone = Alone()
        assert [body for _, _, _, body, _ in alone.send(*pieces)] == [hidden, hidden]
        assert alone.statuses == [200, 200]


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        POST + b"upgrade: h2c\r\nconnection: upgrade\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"host: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        POST + b"x: y\r\n" * 128 + b"\r\n",
        POST + b"x: " + b"y" * 16_384 + b"\r\n\r\n",
        POST + b"x: " + b"y" * 20_000,
        POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: " + b"y" * 24_000,
        POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"y" * 24_000,
    ],
    ids=lambda sent: sent[:90].decode("latin-1"),
)
async def test_what_cannot_be_read_one_way_only_or_without_bound_is_refused(sent: bytes) -> None:
    for pieces in ([sent], [sent[at : at + 100] for at in range(0, len(sent), 100)]):
        alone = Alone()
        assert alone.send(POST + b"\r\n", *pieces)[1:] == []
        assert alone.statuses == [200, 400]
        alone.send(POST + b"\r\n")
        assert alone.statuses == [200, 400]  # nothing that follows is a request
        alone.connection.late()
        assert alone.wire.is_closed


async def test_a_bounded_part_of_the_next_requests_is_kept_while_one_is_served() -> None:
    alone = Alone(goes_on=False)
    request = POST + b"\r\n"
    alone.send(request * 2000)
    assert (len(alone.service.served), alone.wire.is_paused) == (1, True)
    alone.service.goes_on = True
    alone.service.served[0].answer(200, b"{}", {})
    await asyncio.sleep(0.01)
    assert (len(alone.service.served), alone.wire.is_paused) == (2000, False)
    assert alone.statuses == [200] * 2000


async def test_nothing_is_served_while_a_response_waits_for_its_reader() -> None:
    alone = Alone()
    alone.connection.pause_writing()
    alone.send(POST + b"\r\n")
    assert not alone.service.served
    alone.connection.resume_writing()
    assert alone.statuses == [200]


@pytest.mark.parametrize(
    ("head", "goes_on"),
    [
        (b"HTTP/1.1\r\n", True),
        (b"HTTP/1.1\r\nconnection: close\r\n", False),
        (b"HTTP/1.0\r\n", False),
        (b"HTTP/1.0\r\nconnection: keep-alive\r\n", True),
    ],
)
async def test_a_connection_goes_on_as_its_client_asks(head: bytes, *, goes_on: bool) -> None:
    alone = Alone()
    alone.send(b"GET / " + head + b"host: x\r\n\r\n")
    assert alone.wire.is_closed is not goes_on
    assert (b"connection: close\r\n" in alone.wire.written) is not goes_on
    assert (b"connection: keep-alive\r\n" in alone.wire.written) is (goes_on and b"1.0" in head)


async def test_the_answer_to_head_has_no_body() -> None:
    alone = Alone()
    alone.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"content-length: 2\r\n" in alone.wire.written
    assert alone.wire.written.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models/a%2Fb?x=1#f", "/v1/models/a/b"),
        (b"http://host:80/health?x", "/health"),
        (b"http://host", "/"),
        (b"*", "/"),
        (b"/%ff", "/\ufffd"),
    ],
)
async def test_a_path_is_found_in_every_form_of_a_target(target: bytes, path: str) -> None:
    alone = Alone()
    alone.send(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert [each.path for each in alone.service.served] == [path]
