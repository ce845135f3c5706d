"""Budgets and the sizes that a model server has CUDA graphs for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica, ReplicaPolicy

SIZES = (256, 512, 1024, 2048)
FLAT = Curve(0.01, 0.01, 0.0, 700, Rule.FLAT, 4096, capture_sizes=SIZES)
LINE = Curve(0.0, 0.0005, 1e-5, 700, Rule.THROUGHPUT, 4096, capture_sizes=SIZES)
SMOOTH = replace(LINE, capture_sizes=())
JUMP = Curve(0.0, 0.00033, 0.309e-6, 3072, Rule.THROUGHPUT, 8192, capture_sizes=(1024, 2048, 3072, 4096), eager_s=0.002)
"""As MiniLM's on an H200 is estimated: graphs up to 4,096 tokens, and 2 ms of launches above."""

curves = st.builds(
    Curve,
    st.floats(0.0, 0.02),
    st.floats(1e-4, 0.02),
    st.floats(0.0, 1e-4),
    st.just(600),
    st.just(Rule.HINGE),
    st.just(4096),
    capture_sizes=st.lists(st.integers(1, 5000), unique=True, max_size=12).map(sorted).map(tuple),
    eager_s=st.sampled_from((0.0, 0.02, 0.2)),
)


def test_a_step_takes_the_next_sizes_time_and_above_the_last_its_tokens() -> None:
    assert LINE.time_s(257) == LINE.time_s(512) == SMOOTH.time_s(512)
    assert LINE.time_s(2049) == SMOOTH.time_s(2049)


def test_above_the_last_size_a_step_takes_as_long_as_its_launches() -> None:
    assert JUMP.time_s(4096) < 0.0016
    assert JUMP.time_s(4097) == JUMP.time_s(5000) == 0.002
    assert JUMP.time_s(8192) == pytest.approx(0.00286, rel=0.01)


@given(st.integers(1, 8192))
def test_no_budget_is_just_above_the_largest_graph(tokens: int) -> None:
    found = JUMP.snapped(tokens, 8192)
    assert found <= 4096 or JUMP.throughput(found) > JUMP.throughput(4096)
    assert not 4096 < found < 5000


def test_a_batch_of_a_backlog_is_not_just_above_the_graphs() -> None:
    server = replica(JUMP, 3072, capacity=8192)
    assert server.batch_tokens(9000, 9000, 0.0018) == 4096
    assert server.batch_tokens(4200, 4200, 0.01) == 4096
    assert server.batch_tokens(9000, 9000, 0.01) == 8192


def test_an_upper_size_ruled_out_yields_to_the_lower_if_tokens_take_time() -> None:
    assert LINE.snapped(700, 800) == 512
    assert FLAT.snapped(700, 800) == 700
    assert LINE.snapped(100, 200) == 100  # there is no lower one
    assert LINE.snapped(700, 1024) == 1024
    alike = Curve(0.0, 2**-2, 2**-10, 700, Rule.THROUGHPUT, 4096, capture_sizes=(256, 512))
    assert alike.throughput(256) == alike.throughput(384)
    assert alike.snapped(384, 400) == 256


@given(curves, st.integers(1, 6000), st.integers(1, 6000))
def test_no_budget_near_has_a_higher_throughput(curve: Curve, tokens: int, most: int) -> None:
    found = curve.snapped(tokens, most)
    assert 1 <= found <= most
    near = {min(tokens, most), curve.captured_within(min(tokens, most)), curve.padded(tokens)}
    best = max(curve.throughput(size) for size in near if size <= most)
    assert curve.throughput(found) >= best * (1 - 1e-12)


def replica(curve: Curve, budget: int, capacity: int = 0) -> Replica:
    return Replica("a:1", curve, budget, ReplicaPolicy(), capacity=capacity)


def test_a_batch_of_a_backlog_ends_at_a_size_and_within_its_time() -> None:
    server = replica(LINE, 512, capacity=2048)
    assert server.batch_tokens(5000, 5000, 1.0) == 2048
    assert server.batch_tokens(1500, 1500, 1.0) == 1024  # the rest goes with the next batch
    for within_s in (0.006, 0.011, 0.015, 0.021, 0.03):
        tokens = server.batch_tokens(5000, 5000, within_s)
        assert tokens in SIZES
        assert tokens == 512 or server.step_time_s(tokens) <= within_s
    assert server.batch_tokens(5000, 5000, 0.015) == 1024
    assert server.batch_tokens(5000, 5000, 0.021) == 2048
    hardly_rises = replace(LINE, fixed_s=0.020, per_token_s=1e-6)
    assert replica(hardly_rises, 512, capacity=2048).batch_tokens(5000, 5000, 0.0215) == 1024


def test_a_step_above_the_last_size_has_the_tokens_that_its_time_allows() -> None:
    exact = Curve(0.0, 2**-7, 2**-10, 100, Rule.THROUGHPUT, 4096, capture_sizes=(256,))
    assert replica(exact, 128, capacity=4096).batch_tokens(9000, 9000, exact.time_s(300)) == 300
