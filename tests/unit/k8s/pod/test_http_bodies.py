"""The bodies that a service takes which reads none, and clients that are gone when it is their turn."""

from __future__ import annotations

import pytest
from typing_extensions import override

from k8s.pod.http.connections import PooledConnection
from k8s.pod.http.exchange import Service
from tests.support.fake_wire import Alone, Turns, Wire

MOST = Service.max_body_bytes
GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n"


def test_a_body_up_to_the_bound_is_taken() -> None:
    alone = Alone()
    alone.send(GET + b"content-length: %d\r\n\r\n" % MOST + b"x" * MOST)
    assert alone.statuses == [200]


def test_a_body_that_announces_more_is_refused_before_it_comes() -> None:
    alone = Alone()
    alone.send(GET + b"content-length: %d\r\n\r\n" % (MOST + 1))
    assert alone.statuses == [413]
    assert b"nothing here reads one" in alone.wire.written


def test_of_a_body_in_chunks_no_more_than_the_bound_is_kept() -> None:
    alone = Alone()
    alone.send(GET + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        alone.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    assert alone.statuses == [413]
    assert len(alone.now.body) <= MOST + 4096


class Gone(Wire):
    """A transport whose client went away, which it has not noticed."""

    @override
    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise OSError(107, "Transport endpoint is not connected")


def test_a_client_that_is_gone_is_refused_as_any_other() -> None:
    alone = Alone(wire=Gone())
    alone.send(GET + b"content-length: %d\r\n\r\n" % (MOST + 1))
    assert alone.statuses == [413]


class Failing(PooledConnection):
    """Its time-out fails."""

    due_s = 0.0

    @override
    def on_timeout(self) -> None:
        raise RuntimeError("a bug")


def test_a_time_out_that_fails_leaves_the_others_theirs() -> None:
    woken: list[float] = []

    class Woken(Turns):
        @override
        def _wake(self, after_s: float) -> None:
            woken.append(after_s)

    connections = Woken(8)
    connections.set_busy(Failing())
    for _ in range(2):
        with pytest.raises(RuntimeError):
            connections._tick()  # noqa: SLF001
    assert len(woken) == 3
