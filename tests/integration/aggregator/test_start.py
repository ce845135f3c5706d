"""A start that cannot work ends at once, with a line that says what to do."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from loadtest.stack.child import Child
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from tests.integration.aggregator.starts import PATIENCE_S, aggregator, environment, topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def test_an_unreachable_broker_ends_the_start_in_time() -> None:
    (port,) = free_ports(1)
    within = '{"aggregator.settings.aggregator:LifecycleSettings.connect_timeout_s": 3}'
    ended = aggregator(KAFKA__BOOTSTRAP_SERVERS=f"localhost:{port}", CONSTANTS=within)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"tokenbatch aggregator cannot start: kafka: no broker answers at localhost:{port} ("
    )
    assert "is kafka.bootstrap_servers right" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("TELEMETRY__METRICS_BIND", "telemetry.metrics_bind 127.0.0.1:"),
        ("GRPC__BIND", "grpc.bind 127.0.0.1:"),
        ("DEMAND__BIND", "demand.bind 127.0.0.1:"),
    ],
)
def test_a_port_that_is_taken_ends_the_start(kafka: KafkaBroker, taken_port: int, setting: str, says: str) -> None:
    ended = aggregator(
        **topics("ports", create=True),
        KAFKA__BOOTSTRAP_SERVERS=kafka.bootstrap,
        **{"DEMAND__BIND": "127.0.0.1:0", setting: f"127.0.0.1:{taken_port}"},
    )
    assert ended.returncode == 2
    assert f"{says}{taken_port}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_for_a_broker_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        child = Child(
            "aggregator",
            [sys.executable, "-m", "aggregator"],
            tmp_path / "log",
            environment(KAFKA__BOOTSTRAP_SERVERS=address),
        )
        silent.settimeout(PATIENCE_S)
        connection, _ = silent.accept()
        with connection:
            stopped_s = time.monotonic()
            os.kill(child.pid, number)
            while child.exit_code is None and time.monotonic() - stopped_s < 30.0:
                time.sleep(0.05)
        assert child.exit_code == 0, child.log.tail()


def test_without_an_address_no_grpc_port_is_opened(tmp_path: Path) -> None:
    child = Child(
        "aggregator",
        [sys.executable, "-m", "aggregator"],
        tmp_path / "log",
        environment(KAFKA__ENABLED="false", GRPC__BIND="", GRPC='{"bind": ""}'),
    )
    try:
        until_s = time.monotonic() + PATIENCE_S
        while "aggregator started" not in child.log.text() and child.exit_code is None and time.monotonic() < until_s:
            time.sleep(0.05)
        assert '"grpc": null' in child.log.text()
    finally:
        assert child.stop(30.0) == 0, child.log.tail()
