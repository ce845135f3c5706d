"""Figures of benchmarks, and how they are kept."""

import pytest

from loadtest.lab.bench.calls import front_door
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.records import growth
from loadtest.lab.bench.records.kafka_through import rate
from loadtest.lab.bench.setting import Progress, between, cpu_us_per_query
from loadtest.lab.bench.sides import Turn


def test_cpu_time_is_taken_from_the_steady_part() -> None:
    looks = [Progress(0, 5.0, 0), Progress(1, 6.0, 1500), Progress(2, 6.4, 9500), Progress(3, 9.0, 10_000)]
    assert between(looks, 10_000) == (looks[1], looks[2])
    assert cpu_us_per_query(looks, 10_000) == pytest.approx(50.0)


def test_replies_are_timed_from_the_first_that_were_seen_and_without_them() -> None:
    looks = [Progress(0, 0.0, 0), Progress(9, 0.0, 0), Progress(10, 0.0, 200), Progress(14, 0.0, 1000)]
    assert rate(looks) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("value", "wanted", "kept"), [(1.4, "≤ 1.5", True), (1.6, "≤ 1.5", False), (0.94, "≥ 0.95", False), (9, "", True)]
)
def test_a_figure_knows_whether_it_keeps_its_bound(value: float, wanted: str, kept: bool) -> None:
    assert Figure("b", "f", value, "u", 1, wanted=wanted).kept is kept


def test_each_peer_is_set_against_ours_turn_by_turn() -> None:
    def turns(*rates: float) -> list[Turn]:
        return [Turn(rate, 0.1, 0.2, 50.0) for rate in rates]

    sides = {f"{name}_{callers}": turns(50, 100) for callers in front_door.CALLERS for name in front_door.PEERS}
    ours = {f"ours_{callers}": turns(200, 100) for callers in front_door.CALLERS}
    others = {name: turns(100, 100) for name in ("ours_64_stream", "ours_lists", "vllm_lists")}
    found = {each.figure: each for each in front_door.figures({**sides, **ours, **others}, 2, "")}
    assert found["over_vllm_256"].value == 2.5
    assert found["over_vllm_256"].kept
    assert not found["over_vllm_stock_64"].kept
    assert found["ours_64_p99"].value == 200.0


def test_memory_of_a_queued_query_is_told_without_its_text() -> None:
    queues = {1_000: growth.Run(40.0, 1_000, 10_000), 10_000: growth.Run(46.0, 11_000, 5_010_000)}
    others = {1: growth.Run(40.0), 64: growth.Run(42.0)}
    found = {each.figure: each for each in growth.figures(queues, others, others, 60.0)}
    assert found["memory_per_queued_query"].value == 440.0
    assert found["cpu_by_queued"].value == pytest.approx(1.15)
    assert not found["cpu_by_queued"].kept
    assert found["cpu_by_servers"].value == pytest.approx(1.05)
