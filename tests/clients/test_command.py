"""The `tokenbatch` command against a whole stack."""

from __future__ import annotations

import pytest

from loadtest.tokenbatch import main
from tests.clients.conftest import Stack


def test_rank_orders_documents_by_the_first_model_that_ranks(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", "who wrote hamlet", "Bacon", "rain", "Hamlet is by Shakespeare", "--target", stack.grpc]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert sorted(line.split(maxsplit=1)[1].strip() for line in lines) == ["Bacon", "Hamlet is by Shakespeare", "rain"]


def test_rank_says_what_no_model_could_score(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", "who wrote hamlet", "Bacon", "", "--target", stack.grpc]) == 1
    assert "document 1" in capsys.readouterr().out
