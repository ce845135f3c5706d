"""How an answer is written: a large one over TLS in turns, and for as long as its client reads."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from typing_extensions import override

from k8s.pod.http.connections import TIMEOUT_S, State
from tests.support.fake_wire import Alone, Wire

POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize("state", [State.WRITING, State.CLOSING])
async def test_a_client_that_reads_steadily_is_waited_for(state: State) -> None:
    closed: list[str] = []
    alone = Alone()
    alone.connections.on_closed = closed.append
    wire, connection = alone.wire, alone.connection
    wire.unread_bytes = 300 * 1024
    (connection.pause_writing if state is State.WRITING else connection.close)()
    wire.is_closed = False  # a transport closes once all is read
    for read_bytes in (65_536, 65_536, 100_000):
        await asyncio.sleep(TIMEOUT_S[state])
        wire.unread_bytes -= read_bytes
        connection.on_timeout()
        assert (wire.is_closed, connection.state) == (False, state)
        assert connection.due_s == asyncio.get_running_loop().time() + TIMEOUT_S[state]
    wire.unread_bytes -= 65_535
    connection.on_timeout()
    assert (wire.is_closed, closed) == (True, ["unread"])


LARGE = bytes(range(256)) * 4000


class Secure(Wire):
    """A transport over TLS, which keeps the size of each part that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []

    @override
    def get_extra_info(self, name: str) -> Any:
        return object() if name == "sslcontext" else None

    @override
    def write(self, data: bytes) -> None:
        self.parts.append(len(data))
        super().write(data)


def large_answer(wire: Wire) -> Alone:
    """A connection on which a large answer has begun, and a second request has come."""
    alone = Alone(goes_on=False, wire=wire)
    alone.send((POST + b"\r\n") * 2)
    alone.service.served[0].answer(200, LARGE, {})
    return alone


async def test_a_large_answer_over_tls_is_written_in_turns_of_the_loop() -> None:
    wire = Secure()
    alone = large_answer(wire)
    assert (len(wire.parts), alone.connection.state) == (2, State.SERVING)
    written = [sum(wire.parts)]
    while sum(wire.parts) < len(LARGE):
        await asyncio.sleep(0)
        written.append(sum(wire.parts))
    assert max(later - earlier for earlier, later in pairwise(written)) <= 128 * 1024
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert (body, b"content-length: %d\r\n" % len(LARGE) in head) == (LARGE, True)
    alone.go_on()
    assert len(alone.service.served) == 2


async def test_a_large_answer_over_tls_waits_for_its_reader() -> None:
    wire = Secure()
    alone = large_answer(wire)
    for _ in range(2):
        alone.connection.pause_writing()
        alone.connection.resume_writing()
        alone.connection.pause_writing()
        parts = len(wire.parts)
        await asyncio.sleep(1)
        assert (len(wire.parts), alone.connection.state) == (parts, State.WRITING)
        alone.connection.resume_writing()
        alone.connection.pause_writing()
        alone.connection.resume_writing()
        await asyncio.sleep(0)
        assert len(wire.parts) == parts + 1
    await asyncio.sleep(1)
    assert wire.written.partition(b"\r\n\r\n")[2] == LARGE


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_large_answer_over_tls_ends_where_its_client_goes(is_lost: bool) -> None:
    wire = Secure()
    alone = large_answer(wire)
    if is_lost:
        alone.connection.connection_lost(None)
    else:
        wire.abort()
    await asyncio.sleep(1)
    assert len(wire.parts) == 2


async def test_a_large_answer_over_tls_is_not_late_once_it_has_begun() -> None:
    wire = Secure()
    alone = Alone(goes_on=False, wire=wire)
    alone.send(POST + b"\r\n")
    late: list[bool] = []
    alone.now.on_late = lambda: late.append(True)
    alone.now.answer(200, LARGE, {})
    alone.connection.on_timeout()
    await asyncio.sleep(1)
    assert (wire.written.endswith(LARGE), late, alone.connection.state) == (True, [], State.IDLE)


async def test_other_answers_are_written_at_once() -> None:
    plain = large_answer(Wire())
    assert plain.wire.written.endswith(LARGE)
    head = Secure()
    alone = Alone(goes_on=False, wire=head)
    alone.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
    alone.service.served[0].answer(200, LARGE, {})
    assert len(head.parts) == 1
    assert b"content-length: %d\r\n" % len(LARGE) in head.written
    assert alone.connection.state is State.IDLE
