"""The paper's search does what is printed, and what it is fooled by is why production has another controller."""

from __future__ import annotations

from aggregator.scheduler.curve import Curve, Rule
from aggregator.wings.sla.sla import SlaController, SlaPolicy
from loadtest.simulate.paper_sla import PaperController, PaperPolicy

POLICY = PaperPolicy(64, 4096, 4096)
CPU = Curve(0.004, 0.004, 73e-6, 463, Rule.THROUGHPUT, 8192)


def test_its_recentring_in_the_tolerance_falls_to_the_floor_but_not_ours() -> None:
    """Batches fill 90 % of a budget, so each recentring on them takes a tenth off."""
    paper, ours = PaperController(POLICY, 0.020), SlaController(SlaPolicy(64, 4096, 4096), 0.020)
    for _ in range(100):
        paper.observe(int(0.9 * paper.size), 0.020)
        ours.observe(int(0.9 * ours.token_budget), 0.020, ours.token_budget)
    assert paper.size <= POLICY.min_size + POLICY.alpha
    assert ours.token_budget == 4096


def test_its_maximum_with_what_runs_makes_the_size_run_away() -> None:
    """Two batches are out, so what runs is always more than one budget, however slow it is."""
    paper = PaperController(POLICY, CPU.time_s(500))
    for _ in range(100):
        paper.observe(paper.size, CPU.time_s(paper.size), 2 * paper.size)
    assert paper.size == POLICY.max_size
