"""What a stack leaves in its folder, one lock and its addresses while it runs; and what is heard of its start."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.stack.addresses import USUAL, Addresses, forget, only_one, running_stack
from loadtest.stack.errors import StackError
from loadtest.stack.stack import Stages

HERE = Addresses("localhost:1", "localhost:2", "localhost:3", "localhost:4", ["localhost:5"], "http://localhost:4/")


def test_the_addresses_are_there_while_the_stack_runs_and_gone_after(tmp_path: Path) -> None:
    assert running_stack(tmp_path) == USUAL
    HERE.write(tmp_path)
    assert running_stack(tmp_path) == HERE
    assert json.loads((tmp_path / "stack.json").read_text()) == {
        "kafka": "localhost:1",
        "grpc": "localhost:2",
        "http": "localhost:3",
        "metrics": "localhost:4",
        "modelservers": ["localhost:5"],
        "page": "http://localhost:4/",
    }
    forget(tmp_path)
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_one_stack_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / ".run"
    with (
        only_one(folder),
        pytest.raises(StackError, match=r"another stack runs in .* \(process \d+\)"),
        only_one(folder),
    ):
        pass
    with only_one(folder):
        pass


def told(*, done_before: int, terminal: bool) -> str:
    """What 92 jars print as they come."""
    output = io.StringIO()
    with Stages(Console(file=output, force_terminal=terminal, width=200)) as stages:
        stages.begin("Kafka", "starting")
        for done in range(done_before, 92):
            stages.count("Kafka", "downloading jars", done, 92)
    return output.getvalue()


@pytest.mark.parametrize(
    ("terminal", "reminders"),
    [(False, ["still loading the model, 5 s", "still loading the model, 11 s"]), (True, [])],
)
def test_a_log_hears_every_few_seconds_that_a_start_goes_on(*, terminal: bool, reminders: list[str]) -> None:
    now_s, output = 100.0, io.StringIO()
    with Stages(Console(file=output, force_terminal=terminal, width=200), lambda: now_s) as stages:
        stages.begin("model server", "starting")
        stages.begin("aggregator", "starting")
        now_s += 1
        stages.tell("model server", "loading the model")
        for waited_s in (4, 1, 4, 2, 4):
            now_s += waited_s
            stages.remind("model server")
        stages.tell("model server", "loaded the model")
        now_s += 4
        stages.remind("aggregator")
    assert re.findall(r"still .*", output.getvalue()) == reminders


@pytest.mark.parametrize(("done_before", "lines"), [(0, [0, 23, 46, 69]), (24, [46, 69]), (91, [])])
def test_a_log_hears_of_every_quarter_of_a_download(done_before: int, lines: list[int]) -> None:
    printed = told(done_before=done_before, terminal=False).splitlines()
    assert printed == ["==> Kafka: starting", *(f"==> Kafka: downloading jars, {done} of 92" for done in lines)]
