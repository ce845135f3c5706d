"""The embedded Apache Kafka says why it cannot start, and never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadtest.stack.errors import StackError
from loadtest.stack.kafka import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", settings={"log.retention.hours": "many"})
    with pytest.raises(StackError, match=r"Invalid value many for configuration log\.retention\.hours"):
        broker.start()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from loadtest.stack.kafka import KafkaBroker;"
        f"broker = KafkaBroker(Path({str(tmp_path / 'kafka')!r})); broker.start(); print(broker.pid, flush=True);"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        kafka = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while kafka.is_running() and kafka.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not kafka.is_running() or kafka.status() == psutil.STATUS_ZOMBIE
