"""What a connection makes of bytes: it reads requests as aiohttp's parser does, or refuses them, within bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpRequestParser

from k8s.pod.http.connections import SMALL_READ, TIMEOUT_S, State
from tests.support.fake_wire import Alone, Seen, Turns

POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
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
            is_last = message.should_close or (message.version < (1, 1) and message.chunked)
            seen.append((message.method, target, headers, body.read_nowait(-1), not is_last))
            if is_last:
                break
    return seen


async def test_requests_are_read_as_aiohttp_reads_them() -> None:
    """It refuses a few more: versions without a blank before them, and codings beside chunks.

    It closes a connection behind chunks of HTTP/1.0, as RFC 9112 (6.1) has it.
    """
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
            assert is_coded or b"HTTP/" in target, (seed, data)
        served += len(found)
    assert served > 1000


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
"""As Java's client sends its first request: with an offer of HTTP/2."""
HIDDEN = b"GET / HTTP/1.1\r\nhost: evil\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\nx: trailer\r\n\r\n",
    ],
    ids=["of a length", "in chunks", "in chunks with a trailer"],
)
async def test_a_body_behind_an_upgrade_that_is_not_taken_is_read_as_a_body(body: bytes) -> None:
    whole = POST + UPGRADE + body
    for pieces in ([whole * 2], [bytes([byte]) for byte in whole * 2]):
        alone = Alone()
        assert [body for _, _, _, body, _ in alone.send(*pieces)] == [HIDDEN, HIDDEN]
        assert alone.statuses == [200, 200]


async def test_chunks_behind_an_upgrade_that_are_broken_are_refused() -> None:
    alone = Alone()
    assert alone.send(POST + UPGRADE + b"transfer-encoding: chunked\r\n\r\nx\r\n") == []
    assert alone.statuses == [400]


async def test_an_upgrade_without_a_body_is_served_as_if_it_were_none() -> None:
    alone = Alone()
    assert len(alone.send((b"GET / HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n") * 2)) == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
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
        alone.connection.on_timeout()
        assert alone.wire.is_closed


async def test_a_bounded_part_of_the_next_requests_is_kept_while_one_is_served() -> None:
    alone = Alone(goes_on=False)
    request = POST + b"\r\n"
    alone.send(request * 2000)
    assert (len(alone.service.served), alone.wire.is_paused) == (1, True)
    assert len(request) * 1999 - len(alone.unread) <= SMALL_READ
    alone.service.goes_on = True
    alone.service.served[0].answer(200, b"{}", {})
    alone.go_on()
    assert (len(alone.service.served), alone.wire.is_paused) == (2000, False)
    assert alone.statuses == [200] * 2000


async def test_one_request_is_served_a_turn() -> None:
    alone = Alone()
    alone.unread = (POST + b"\r\n") * 100
    assert alone.read()
    assert (len(alone.service.served), alone.wire.is_paused) == (1, True)
    while alone.connections.next():
        assert len(alone.service.served) == 1 + alone.connections.turns
    assert (len(alone.service.served), alone.wire.is_paused) == (100, False)


async def test_connections_with_more_to_read_have_their_turns_one_after_another() -> None:
    pool, first, second = Turns(8), Alone(), Alone()
    for each in (first, second):
        each.join(pool)
        each.unread = (POST + b"\r\n") * 10
        assert each.read()
    for _ in range(6):
        pool.next()
    assert (len(first.service.served), len(second.service.served)) == (4, 4)


@pytest.mark.parametrize("size", [1, 2, 60])
async def test_a_bounded_part_of_a_body_in_chunks_is_parsed_a_turn(size: int) -> None:
    chunk = b"%x\r\n" % size + b"a" * size + b"\r\n"
    count = SMALL_READ // len(chunk)
    alone = Alone()
    alone.send(POST + b"transfer-encoding: chunked\r\n\r\n")
    alone.unread = chunk * count
    assert alone.read()
    parsed = [alone.now.arrived_bytes]
    while alone.connections.next():
        parsed.append(alone.now.arrived_bytes - sum(parsed))
    assert max(parsed) <= size * (256 + 4096 / len(chunk)) + size
    assert sum(parsed) == count * size
    assert len(alone.send(b"0\r\n\r\n")) == 1


async def test_empty_lines_within_chunks_do_not_end_a_body_and_cost_turns() -> None:
    data = b"\r\n\r\n" * 1024
    alone = Alone()
    chunks = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n"
    [(*_, body, _)] = alone.send(POST + chunks)
    assert body == data
    assert alone.connections.turns >= len(data) // 4 // 256


async def test_nothing_is_served_while_a_response_waits_for_its_reader() -> None:
    alone = Alone()
    alone.connection.pause_writing()
    alone.send(POST + b"\r\n")
    assert not alone.service.served
    alone.connection.resume_writing()
    alone.go_on()
    assert alone.statuses == [200]


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    closed: list[str] = []
    alone = Alone()
    alone.connections.on_closed = closed.append
    alone.connection.pause_writing()
    assert alone.connection.state is State.WRITING
    alone.connection.on_timeout()
    assert (alone.wire.is_closed, closed) == (True, ["unread"])


async def test_a_request_goes_on_in_the_state_in_which_its_reader_fell_behind() -> None:
    alone = Alone(goes_on=False)
    alone.send(POST + b"content-length: 2\r\n\r\na")
    alone.connection.pause_writing()
    alone.send(b"b")
    assert not alone.service.served
    states: list[State] = []
    for step in ("resume", "pause", "resume", "pause", "answer", "resume"):
        if step == "answer":
            alone.service.served[0].answer(200, b"{}", {})
        else:
            (alone.connection.resume_writing if step == "resume" else alone.connection.pause_writing)()
        alone.go_on()
        states.append(alone.connection.state)
    assert states == [State.SERVING, State.WRITING, State.SERVING, State.WRITING, State.WRITING, State.IDLE]


async def test_a_connection_says_what_it_waits_for() -> None:
    alone = Alone(goes_on=False)
    states = [alone.connection.state]
    for piece in (b"POST ", b"/ HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"ab"):
        alone.send(piece)
        states.append(alone.connection.state)
    alone.service.served[0].answer(200, b"{}", {})
    states.append(alone.connection.state)
    assert states == [State.IDLE, State.HEAD, State.BODY, State.SERVING, State.IDLE]


async def test_a_body_that_does_not_come_is_refused_and_lingered_for() -> None:
    alone = Alone()
    alone.send(POST + b"content-length: 2\r\n\r\na")
    states: list[State] = []
    for _ in range(2):
        alone.connection.on_timeout()
        states.append(alone.connection.state)
    assert (alone.statuses, states) == ([408], [State.LINGERING, State.CLOSING])


async def test_the_rest_of_a_refused_body_is_read_before_the_next_request() -> None:
    alone = Alone()
    alone.send(POST + b"content-length: 3\r\n\r\na")
    alone.now.answer(401, b"{}", {})
    alone.send(b"bc" + POST + b"\r\n")
    assert (alone.statuses, alone.connection.state) == ([401, 200], State.IDLE)


@pytest.mark.parametrize(("version", "told"), [(b"1.1", [100]), (b"1.0", [])])
async def test_a_client_that_waits_for_leave_gets_it_in_its_version(version: bytes, told: list[int]) -> None:
    alone = Alone()
    alone.send(b"POST / HTTP/%b\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % version)
    assert alone.statuses == told
    alone.send(b"ab")
    assert alone.statuses == [*told, 200]


async def test_chunks_of_http_1_0_are_the_last_request_of_their_connection() -> None:
    alone = Alone()
    old = b"POST / HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    alone.send(old + POST + b"\r\n")
    assert (alone.statuses, alone.wire.is_closed) == ([200], True)
    assert b"connection: close" in alone.wire.written


async def test_those_that_linger_have_a_bound_of_their_own() -> None:
    pool, many = Turns(8), [Alone() for _ in range(5)]
    for each in many:
        each.join(pool)
        each.send(POST + b"content-length: 3\r\n\r\na")
        each.now.answer(401, b"{}", {}, closes=True)
    assert [each.wire.is_closed for each in many] == [True, True, True, False, False]
    newest = Alone()
    newest.join(pool)
    assert (newest.wire.is_closed, len(pool)) == (False, 3)


async def test_pipelines_that_nobody_reads_are_bounded_as_those_that_linger() -> None:
    pool, one, other = Turns(8), Alone(), Alone()
    for each in (one, other):
        each.join(pool)
        each.connection.pause_writing()
    assert pool.is_busy(one.connection)
    one.send(POST + b"\r\n")
    assert (pool.is_busy(one.connection), pool.is_busy(other.connection)) == (False, True)


def test_every_state_has_a_time_out() -> None:
    assert set(TIMEOUT_S) == set(State)


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
