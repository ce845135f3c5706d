"""The sample's table: which token budget the batches of each way had."""

import numpy as np
import pytest

from loadtest.kit.prometheus import BatchFigures
from loadtest.kit.tally import Tally
from loadtest.up.sample import Passage, Sample, budgets_note


def sample(*budgets: float) -> Sample:
    summary = Tally(np.arange(1)).summary()
    passages = [Passage(f"way {budget}", summary, BatchFigures(10, 500, 500 / budget)) for budget in budgets]
    return Sample(["who wrote hamlet"], tuple(passages), np.zeros((1, 2), np.float32))


def test_the_mean_token_budget_follows_from_tokens_and_fills() -> None:
    assert BatchFigures(2, 300, 1.5).token_budget == pytest.approx(200)
    assert BatchFigures(0, 0, 0).token_budget == 0.0


def test_ways_that_had_different_budgets_are_named() -> None:
    assert budgets_note(sample(512, 512)) == ""
    assert budgets_note(sample(1024, 512)).startswith("The token budgets differ, 512 and 1,024: ")
