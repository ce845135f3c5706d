"""Ports of this machine: which are free, and whom they are given to."""

from __future__ import annotations

import socket

import pytest

from loadtest.stack import ports
from loadtest.stack.errors import StackError
from loadtest.stack.ports import choose_port, free_ports, is_free


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
