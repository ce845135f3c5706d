"""A benchmark that is ended leaves nothing behind, least of all a server that waits, stopped, for its turn."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = """
import signal, sys, time
from loadtest.__main__ import main
from loadtest.lab.bench import run
from loadtest.stack.part import Program
from pathlib import Path

def measure(plan):
    with Program("http.server", ["0", "--bind", "127.0.0.1"], plan.folder / "log") as server:
        server.pause()
        print(server.pid, flush=True)
        time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
run.BENCHES["P1"] = measure
sys.exit(main(["bench", "P1", "--data-dir", sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_a_signal_ends_leaves_no_stopped_server(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", BENCH, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as bench:
        assert bench.stdout
        server = Path(f"/proc/{int(bench.stdout.readline())}")
        assert (server / "stat").read_text().split()[2] == "T"
        bench.send_signal(number)
        assert bench.wait(20) == 130
    assert not server.exists()
