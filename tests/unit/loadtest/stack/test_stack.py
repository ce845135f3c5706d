"""What a stack leaves in its folder, one lock and its addresses while it runs; and what is heard of its start."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.stack import ports
from loadtest.stack.addresses import USUAL, Addresses, forget, only_one, running_stack
from loadtest.stack.errors import StackError
from loadtest.stack.ports import choose_port, free_ports, is_free
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


def test_a_port_given_to_one_goes_to_no_other_before_its_server_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (given,) = free_ports(1)
    monkeypatch.setattr(ports, "_PORTS", range(given, given + 1))
    with pytest.raises(StackError, match="no 1 ports are free"):
        free_ports(1)
    with socket.create_server(("localhost", given)):
        assert not is_free(given)


def test_a_busy_port_is_avoided_unless_it_was_asked_for() -> None:
    (busy,) = free_ports(1)  # none of those that the kernel lends to others once it is free again
    with socket.create_server(("localhost", busy)):
        assert not is_free(busy)
        assert choose_port(None, busy, "--grpc-port") != busy
        with pytest.raises(StackError, match=f"port {busy} is busy: give --grpc-port another"):
            choose_port(busy, 1, "--grpc-port")
    assert choose_port(busy, 1, "--grpc-port") == busy
    assert choose_port(None, busy, "--grpc-port") == busy


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
