"""What the sources' experiments give here."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from loadtest.lab.generation.engine import Server, generate
from loadtest.lab.generation.lengths_vary import Way, throughput
from loadtest.lab.generation.limits import ByPaper, Fixed
from loadtest.lab.generation.memory_and_sla import FIGURE_3, TABLE_1, TARGET_S, figure_3, memory_limit, table_1
from loadtest.lab.generation.work import around, at_once


def test_figure_3_rises_ever_more_slowly_and_passes_through_what_is_printed() -> None:
    points = figure_3((50, 100, 150, 200, 230))
    rates = [rate for _, _, rate in points]
    gains = [after - before for before, after in pairwise(rates[:4])]
    assert all(gain > 0.0 for gain in gains)
    assert gains == sorted(gains, reverse=True)
    assert points[1][1:] == pytest.approx((50.0, 1900.0), rel=0.05)
    assert points[4][1:] == pytest.approx((80.0, 2700.0), rel=0.07)


def test_the_fixed_column_is_fitted_and_the_dynamic_one_larger() -> None:
    found = table_1(TABLE_1[0])
    assert found.static == pytest.approx(1983.0, rel=0.001)
    assert found.gain == pytest.approx(0.082, abs=0.03)
    assert found.dynamic_running > found.static_running
    assert found == table_1(TABLE_1[0])


def test_the_memory_limit_hardly_ever_overflows_where_twice_as_many_requests_do_again_and_again() -> None:
    rng = np.random.default_rng(1)
    work = at_once(around(100.0, 0.5, 1500, rng), around(300.0, 0.5, 1500, rng))
    server = Server(FIGURE_3, 20_000)
    limited = generate(server, memory_limit(20_000, 1500), work)
    assert limited.overflows < 0.001 * limited.steps
    assert generate(server, Fixed(round(2.0 * limited.running)), work).overflows > 50 * (1 + limited.overflows)


def test_the_papers_controller_brings_steps_to_their_target() -> None:
    rng = np.random.default_rng(1)
    work = at_once(around(1.0, 0.0, 2000, rng), around(200.0, 0.5, 2000, rng))
    found = generate(Server(FIGURE_3), ByPaper(TARGET_S, 256), work)
    assert found.step_s == pytest.approx(TARGET_S, rel=0.15)
    assert generate(Server(FIGURE_3), Fixed(256), work).step_s > 1.5 * TARGET_S


def test_static_batches_collapse_as_lengths_vary_and_continuous_ones_with_pages_hold() -> None:
    static = [throughput(Way.STATIC, most).tokens_per_s for most in (128, 1536)]
    paged = [throughput(Way.PAGED, most).tokens_per_s for most in (128, 1536)]
    assert static[1] == pytest.approx(81.0, rel=0.03)  # printed, and what the curve is fitted to
    assert static[1] < 0.5 * static[0]
    assert paged[1] > paged[0]
