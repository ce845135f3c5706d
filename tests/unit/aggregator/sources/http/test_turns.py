"""What a caller sends costs the event loop a few milliseconds a turn at most, and no more a byte when it is more."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Generator

import pytest

from k8s.pod.http.connections import LARGE_READ, SMALL_READ
from tests.support.fake_wire import Alone
from tests.support.turns import TURN_S
from tests.unit.aggregator.sources.http.test_connection import POST, UPGRADE, some_requests

pytestmark = pytest.mark.real_time("bounds the CPU time of this thread: of three runs, the least")

CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
Sent = Callable[[int], bytes]


def repeated(begin: bytes, each: bytes, end: bytes = b"") -> Sent:
    return lambda size: begin + each * (size // len(each)) + end


SENT: dict[str, Sent] = {
    "requests in a row": repeated(b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
    "requests with a body of one byte": repeated(b"", POST + b"content-length: 1\r\n\r\na"),
    "requests that offer an upgrade": repeated(b"", POST + UPGRADE + b"content-length: 1\r\n\r\na"),
    "upgrades with chunks": repeated(b"", POST + UPGRADE + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"),
    "chunks of one byte": repeated(CHUNKED, b"1\r\na\r\n", b"0\r\n\r\n"),
    "chunks of empty lines": repeated(CHUNKED, b"8\r\n\r\n\r\n\r\n\r\n\r\n", b"0\r\n\r\n"),
    "chunks with extensions": repeated(CHUNKED, b"1;" + b"x" * 200 + b"\r\na\r\n", b"0\r\n\r\n"),
    "trailers": repeated(CHUNKED + b"1\r\na\r\n0\r\n", b"a:\r\n", b"\r\n"),
    "headers of one name": repeated(POST, b"a:\r\n", b"\r\n"),
    "many headers": lambda size: POST + b"".join(b"%x:\r\n" % number for number in range(size // 8)) + b"\r\n",
    "a long target": lambda size: b"GET /" + b"a" * size + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "blank lines": repeated(b"", b"\r\n", POST + b"\r\n"),
    "a body": lambda size: POST + b"content-length: %d\r\n\r\n" % size + b"a" * size,
    "what is no HTTP": lambda size: b"\x00" * size,
}


@pytest.fixture(autouse=True)
def without_collections() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


def steps_s(sent: bytes) -> list[float]:
    """Processor time of each turn: of each read from the network, and of each further one."""
    alone, costs = Alone(), list[float]()
    alone.unread = sent
    is_going = True
    while is_going:
        began_s = time.thread_time()
        is_going = alone.read() or alone.connections.next()
        costs.append(time.thread_time() - began_s)
    return costs


def least_s(sent: bytes) -> list[float]:
    """The least of three times for each turn, since others' work can only add to it."""
    return [min(each) for each in zip(*(steps_s(sent) for _ in range(3)), strict=True)]


@pytest.mark.parametrize("name", SENT)
async def test_no_turn_is_longer_than_its_bound_at_any_size(name: str) -> None:
    for size in (64, 1024, 4096, SMALL_READ, LARGE_READ):
        assert max(least_s(SENT[name](size))) < TURN_S, size


@pytest.mark.parametrize("name", SENT)
async def test_what_is_sent_costs_no_more_a_byte_when_it_is_more(name: str) -> None:
    """Sixteen times as much: a cost that grows with the square would be 256 times as large."""
    small, large = (sum(least_s(SENT[name](size))) for size in (SMALL_READ, 16 * SMALL_READ))
    assert large < 40 * small + TURN_S


async def test_no_turn_is_longer_than_its_bound_for_requests_by_chance() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        sent = b"".join(some_requests(chance) for _ in range(20))
        assert max(least_s(sent)) < TURN_S, seed
