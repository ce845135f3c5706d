"""What calls hold before their tokens are counted is bounded, shared, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from aggregator.admission.ledger import Ledger
from aggregator.errors import InvalidRequest, Overloaded
from aggregator.observability.metrics import Limit, Metrics
from aggregator.sources.calls.load import Limits, Load, RateLimit
from k8s.pod.metrics_buffer import MetricsBuffer


class Listener:
    """A load of ten calls, 1,250 bytes and ten streams; of the bytes one call has 1,000 at the most."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.metrics = Metrics(MetricsBuffer())
        self.now_s = 0.0
        limits, ledger = Limits(max_calls=10, max_streams=10), Ledger(1250, intake_share=0.0)
        self.load = Load(limits, self.metrics, lambda: jitter, ledger=ledger, clock=lambda: self.now_s)

    def refused(self, what: Callable[[], object]) -> tuple[str, float]:
        """The words and the pause of a refusal."""
        with pytest.raises(Overloaded) as told:
            what()
        return str(told.value), told.value.retry_after_s

    @property
    def limits(self) -> dict[str, float]:
        """How often each limit refused somebody."""
        return {limit: count for (limit,), count in self.metrics.calls_refused.sums.items() if count}

    @property
    def held(self) -> tuple[int, int, int]:
        load = self.load
        return load.calls.total, load.ledger.callers.total, load.streams.total


def test_calls_are_taken_up_to_the_bound_and_given_back() -> None:
    here = Listener()
    rooms = [here.load.enter((f"caller {number}",)) for number in range(10)]
    words, _ = here.refused(lambda: here.load.enter(("another",)))
    assert words == "too many requests are in flight: try again later"
    assert here.limits == {Limit.CALLS: 1}
    rooms[3].leave()
    assert here.held == (9, 0, 0)
    here.load.enter(("another",))
    assert here.load.calls.holders == 10


def test_nobody_takes_more_calls_than_a_share() -> None:
    here = Listener()
    for _ in range(8):
        here.load.enter(("greedy",))
    words, _ = here.refused(lambda: here.load.enter(("greedy",)))
    assert words.startswith("your share of the requests")
    assert here.limits == {Limit.SHARE_OF_CALLS: 1}
    here.load.enter(("modest",))


def test_bytes_are_taken_as_they_become_known_up_to_bound_and_share() -> None:
    here = Listener()
    room, other = here.load.enter(("a",)), here.load.enter(("b",))
    other.widen(50)
    room.widen(300)
    room.widen(500)
    assert (room.size_bytes, here.held) == (800, (2, 850, 0))
    room.widen(160)
    assert here.refused(lambda: room.widen(10))[0].startswith("your share of the bytes")
    assert here.refused(lambda: other.widen(241))[0].startswith("the requests in flight hold too many bytes")
    assert here.limits == {Limit.SHARE_OF_BYTES: 1, Limit.BYTES: 1}
    assert room.size_bytes == 960
    room.leave()
    other.widen(950)
    assert here.held == (1, 1000, 0)


def test_what_never_fits_is_refused_for_good_with_the_figure() -> None:
    here = Listener()
    room = here.load.enter(("a",))
    room.widen(600)
    with pytest.raises(InvalidRequest, match="take 1001 bytes of memory: at most 1000 are taken"):
        room.widen(401)
    assert here.limits == {}


def test_the_slowest_message_gives_way_where_all_bytes_are_held() -> None:
    here = Listener()
    ended: list[str] = []
    rooms = {name: here.load.enter((name,)) for name in ("fast", "slow", "empty", "whole")}

    def end(name: str, error: Overloaded) -> None:
        ended.append(f"{name}: {error}")
        rooms[name].charge(-rooms[name].size_bytes)

    for name, room in rooms.items():
        room.arrives(partial(end, name))
    rooms["whole"].widen(10)
    rooms["whole"].arrived()
    rooms["slow"].widen(400)
    here.now_s = 4.0
    rooms["fast"].arrives(partial(end, "fast"))
    rooms["fast"].widen(400)
    here.now_s = 5.0
    caller = here.load.enter(("caller",))
    caller.widen(500)
    assert [each.partition(":")[0] for each in ended] == ["slow"]
    assert "arrives slowest" in ended[0]
    assert here.limits == {Limit.SLOW: 1}
    assert here.refused(lambda: rooms["fast"].widen(400))[0].startswith("the requests in flight")
    rooms["fast"].leave()
    assert here.refused(lambda: rooms["whole"].widen(900))[0].startswith("the requests in flight")


def test_what_is_found_out_later_is_charged_whether_or_not_it_is_free() -> None:
    here = Listener()
    room = here.load.enter(("a",))
    room.charge(5000)
    room.charge(-1000)
    assert (room.size_bytes, here.held) == (4000, (1, 4000, 0))
    room.leave()
    assert (here.held, here.load.ledger.callers.holders) == ((0, 0, 0), 0)


def test_streams_are_taken_up_to_the_bound_and_the_share_and_closed() -> None:
    here = Listener()
    for _ in range(8):
        here.load.open_stream(("a",))
    assert here.refused(lambda: here.load.open_stream(("a",)))[0].startswith("your share of the streams")
    for name in "bc":
        here.load.open_stream((name,))
    assert here.refused(lambda: here.load.open_stream(("d",)))[0].startswith("too many streams")
    assert here.limits == {Limit.SHARE_OF_STREAMS: 1, Limit.STREAMS: 1}
    here.load.close_stream(("a",))
    assert here.held == (0, 0, 9)
    here.load.open_stream(("d",))
    assert here.load.streams.holders == 4


def test_a_tenant_that_is_found_later_answers_for_what_its_call_holds() -> None:
    here = Listener()
    room = here.load.enter(("connection",))
    room.widen(100)
    room.also_count_for("tenant")
    assert room.holders == ("connection", "tenant")
    assert (here.held, here.load.calls.holders, here.load.ledger.callers.holders) == ((1, 100, 0), 2, 2)
    room.widen(100)
    room.leave()
    assert (here.held, here.load.calls.holders, here.load.ledger.callers.holders) == ((0, 0, 0), 0, 0)


def test_a_tenant_whose_share_of_calls_or_bytes_is_used_up_is_refused() -> None:
    here = Listener()
    for _ in range(8):
        here.load.enter(("tenant",))
    late = here.load.enter(("connection",))
    assert here.refused(lambda: late.also_count_for("tenant"))[0].startswith("your share of the requests")
    here = Listener()
    here.load.enter(("tenant",)).charge(990)
    late = here.load.enter(("connection",))
    late.widen(100)
    assert here.refused(lambda: late.also_count_for("tenant"))[0].startswith("your share of the bytes")
    assert here.limits == {Limit.SHARE_OF_BYTES: 1}
    assert late.holders == ("connection",)
    late.leave()
    assert here.held == (1, 990, 0)


@pytest.mark.parametrize(("jitter", "retry_s"), [(0.0, 0.1), (0.5, 0.15)])
def test_who_is_refused_is_told_when_to_come_again_and_not_all_at_once(jitter: float, retry_s: float) -> None:
    here = Listener(jitter)
    for number in range(10):
        here.load.enter((str(number),))
    assert here.refused(lambda: here.load.enter(("another",)))[1] == pytest.approx(retry_s)


async def test_a_call_given_up_keeps_its_room_until_the_work_for_it_has_ended() -> None:
    here = Listener()
    room = here.load.enter(("a",))
    room.widen(100)
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    room.keep_until(work)
    room.leave()
    assert here.held == (1, 100, 0)
    work.set_result(None)
    await asyncio.sleep(0)
    assert (here.held, here.load.calls.holders) == ((0, 0, 0), 0)


def test_a_call_alone_fits_the_share_of_whoever_is_found_to_answer_for_it() -> None:
    here = Listener()
    room = here.load.enter(("connection",))
    room.widen(1000)
    room.also_count_for("tenant")
    room.leave()
    assert here.held == (0, 0, 0)


def test_a_tenant_answers_for_as_many_calls_as_its_share() -> None:
    here = Listener()
    for number in range(8):
        here.load.enter((f"connection {number}",)).also_count_for("tenant")
    one_more = here.load.enter(("another",))
    words, _ = here.refused(lambda: one_more.also_count_for("tenant"))
    assert here.limits == {Limit.SHARE_OF_CALLS: 1}, words


def test_what_exceeds_the_rate_waits_in_order_and_what_is_later_does_not() -> None:
    limit = RateLimit(10.0)
    assert [limit.wait_s(5, 100.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert limit.wait_s(1, 101.0) == 0.5
    assert limit.wait_s(1, 200.0) == 0.0
