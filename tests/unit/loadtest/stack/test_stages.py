"""A log hears of a start in a few lines, a terminal of each step."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadtest.stack.stages import Stages


def told(*, done_before: int, terminal: bool) -> str:
    """What 92 jars print as they come."""
    output = io.StringIO()
    with Stages(Console(file=output, force_terminal=terminal, width=200)) as stages:
        stages.begin("Kafka", "starting")
        for done in range(done_before, 92):
            stages.count("Kafka", "downloading jars", done, 92)
    return output.getvalue()


@pytest.mark.parametrize(("done_before", "lines"), [(0, [0, 23, 46, 69]), (24, [46, 69]), (91, [])])
def test_a_log_hears_of_every_quarter_of_a_download(done_before: int, lines: list[int]) -> None:
    printed = told(done_before=done_before, terminal=False).splitlines()
    assert printed == ["==> Kafka: starting", *(f"==> Kafka: downloading jars, {done} of 92" for done in lines)]
