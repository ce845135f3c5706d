"""`python -m loadtest up`, which is what `make up` runs: started, used, stopped and broken for real."""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.redis import RedisServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SYNTHETIC = {"TOKENBATCH_MODELSERVER_ENGINE__KIND": "synthetic"}
TABLE_ROWS = (
    *("queries 200 200 ", "lost 0 0 ", "batches ", "tokens per batch ", "latency p50 ", "latency p99 "),
    *("one by one, queries/s ", "batched, queries/s ", "batching buys "),
)


def _hear_ctrl_c() -> None:
    """A shell's background job ignores Ctrl-C, and so would whatever it starts; a newcomer's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Up:
    """One run of the command; its output goes to a file."""

    def __init__(self, folder: Path, *options: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._output = folder.with_suffix(".out")
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadtest", "up", "--data-dir", str(folder), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200", **environment},
                preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - this process has no other thread that holds a lock
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, timeout_s: float = 600) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.2)

    def exit_code(self, timeout_s: float = 600) -> int:
        return self.process.wait(timeout_s)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def up(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Generator[Up]:
    run = Up(folder, *options, environment=environment or {})
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def words(text: str) -> str:
    """The text with every space and every line of a table as one space."""
    return re.sub(r"[\s│]+", " ", text)


def test_it_embeds_prints_working_commands_and_restarts_on_the_same_data(tmp_path: Path) -> None:
    with up(tmp_path / "run", environment=SYNTHETIC) as run:
        run.wait_for("Ctrl-C stops everything")
        shown = words(run.output)
        for row in TABLE_ROWS:
            assert row in shown
        assert "question nearest among them cosine" in shown.replace("┃ ", "")
        addresses = json.loads((run.folder / "stack.json").read_text())
        assert sorted(addresses) == [
            *("grpc", "http", "kafka", "metrics", "modelserver_metrics", "modelservers", "page")
        ]
        listening = [*(addresses[name] for name in ("grpc", "http", "kafka", "metrics")), *addresses["modelservers"]]
        listening += addresses["modelserver_metrics"]
        assert all(map(is_open, listening))
        assert run.output.startswith(f"==> the live page: {addresses['page']}")
        with urllib.request.urlopen(addresses["page"], timeout=30) as page:  # noqa: S310 - of this stack
            assert b"<title>tokenbatch</title>" in page.read()

        commands = re.findall(r"^  (?:questions|a question).*?  +(\S.*)$", run.output, re.MULTILINE)
        assert len(commands) == 4
        for command in commands:
            if command.startswith("curl") and not shutil.which("curl"):
                continue  # README asks for none; tests/clients runs it
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert not command.startswith("curl") or len(json.loads(done.stdout)["data"][0]["embedding"]) == 384

        with up(run.folder) as second:
            assert second.exit_code() == 2
            assert f"another stack runs in {run.folder} (process {run.process.pid})" in second.output

        children = run.children()
        assert len(children) >= 3
        run.process.send_signal(signal.SIGINT)
        assert run.exit_code() == 0, run.output
        assert_gone(children)
        assert not (run.folder / "stack.json").exists()
        assert not any(map(is_open, listening))

    with up(tmp_path / "run", "--exit", environment=SYNTHETIC) as again:
        assert again.exit_code() == 0, again.output
        assert all(row in words(again.output) for row in TABLE_ROWS)
        assert not (again.folder / "stack.json").exists()


def test_users_retrieve_on_a_mixed_server_and_on_a_split_pair(tmp_path: Path) -> None:
    with up(tmp_path / "run", "--mixed", "--exit", "--users", "4", environment=SYNTHETIC) as run:
        assert run.exit_code() == 0, run.output
        shown = words(run.output)
        assert "4 users retrieve among 200 real questions, 2 loops each" in shown
        assert "3 more runs, in turns: about" in shown
        rows = re.findall(r"(one mixed server|a split pair) ([\d.]+) ([\d.]+) to ([\d.]+) ([\d.]+) s ([\d.]+) s", shown)
        assert [servers for servers, *_ in rows] == ["one mixed server", "a split pair"]
        assert all(float(figure) > 0.0 for _, *figures in rows for figure in figures)
        assert not (run.folder / "stack.json").exists()


def sent(command: str) -> str:
    """What a printed command of curl gets; README asks for no curl, and where there is none its words are sent."""
    if shutil.which("curl"):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout
    given = shlex.split(command)
    url = next(word for word in given if word.startswith("http://"))
    address, _, path = url.removeprefix("http://").partition("/")
    with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        connection.request("POST", f"/{path}", given[given.index("-d") + 1].encode())
        return connection.getresponse().read().decode()


def answered(command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sent(command))
    return found


def test_texts_are_generated_and_the_commands_printed_work(tmp_path: Path) -> None:
    with up(tmp_path / "run", "--generate", environment=SYNTHETIC) as run:
        run.wait_for("Ctrl-C stops everything")
        shown = words(run.output)
        assert "gRPC, all at once 20 " in shown
        assert "Kafka, all at once 20 " in shown
        commands = re.findall(r"^  a (?:text|chat).*?  +(curl.*)$", run.output, re.MULTILINE)
        assert len(commands) == 2
        assert answered(commands[0])["choices"][0]["text"]
        assert sent(commands[1]).rstrip().endswith("data: [DONE]")


def test_neighbours_are_ranked_and_both_orders_shown(tmp_path: Path) -> None:
    """The ranker, which is made here once, scores without its weights."""
    with up(tmp_path / "run", "--rank", environment=SYNTHETIC) as run:
        run.wait_for("Ctrl-C stops everything")
        (command,) = re.findall(r"^  (curl .*/v1/rerank.*)$", run.output, re.MULTILINE)
        assert len(answered(command)["results"]) == 2
        assert len(answered(command.replace("minilm-ranker", "ranker"))["results"]) == 2
        shown = words(run.output)
        assert "nearest by vectors" in shown
        assert len(re.findall(r" -?\d\.\d\d [^|]+? -?\d\.\d\d ", shown)) == 20
        assert "minilm-ranker, is made of the bundled MiniLM" in shown


def test_a_file_of_questions_is_embedded_and_its_cost_shown(tmp_path: Path) -> None:
    with up(tmp_path / "run", "--batch", "--exit", environment=SYNTHETIC) as run:
        assert run.exit_code() == 0, run.output
        shown = words(run.output)
        assert "Embedding 3,600 real questions as a file" in shown
        assert re.search(r"per 1,000 3,600 3,600 0 [\d,]+ ", shown)


def test_the_demonstration_tells_each_step_and_loses_nothing(tmp_path: Path) -> None:
    with up(tmp_path / "run", "--demo", "10", "--exit") as run:
        assert run.exit_code() == 0, run.output
        shown = words(run.output)
        for step in ("Morning", "A burst", "four times slower", "is killed", "starts again", "Evening"):
            assert step in shown
        assert re.search(r"all [\d,]+ 0 ", shown)
        assert not (run.folder / "stack.json").exists()


def test_it_embeds_through_ones_own_kafka_and_when_killed_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "replies.npz"
    with (
        KafkaBroker(tmp_path / "own") as kafka,
        up(tmp_path / "run", "--kafka", kafka.bootstrap, environment=SYNTHETIC) as run,
    ):
        run.wait_for("Ctrl-C stops everything")
        assert not (run.folder / "kafka").exists()
        produce = [sys.executable, "-m", "loadtest", "produce", "--bootstrap", kafka.bootstrap, "--out", str(out)]
        subprocess.run([*produce, "--count", "50"], check=True, capture_output=True, timeout=120)
        children = run.children()
        run.process.kill()
        assert_gone(children)
    with np.load(out) as replies:
        assert replies["embedding"].shape == (50, 384)


def test_a_part_that_cannot_start_is_shown_with_its_words(tmp_path: Path) -> None:
    wrong = {**SYNTHETIC, "TOKENBATCH_MODELSERVER_MODEL__PATH": "", "TOKENBATCH_MODELSERVER_ENGINE__KNID": "core"}
    with up(tmp_path / "run", "--exit", environment=wrong) as run:
        assert run.exit_code() == 2
        assert "model server ended with exit code 2" in run.output
        assert "knid" in run.output.lower()
        assert not (run.folder / "stack.json").exists()


def test_a_part_that_ends_while_serving_ends_the_stack(tmp_path: Path) -> None:
    with up(tmp_path / "run", environment=SYNTHETIC) as run:
        run.wait_for("Ctrl-C stops everything")
        aggregator = next(child for child in run.children() if "aggregator" in child.cmdline())
        aggregator.kill()
        assert run.exit_code() == 1
        assert "aggregator ended with exit code -9. It was serving until then." in run.output


def test_a_port_that_was_asked_for_and_is_busy_is_named(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        with up(tmp_path / "run", "--grpc-port", str(port)) as run:
            assert run.exit_code() == 2
    assert f"port {port} is busy: give --grpc-port another" in run.output


@pytest.mark.redis
def test_redis_is_started_and_its_questions_get_their_vectors(tmp_path: Path) -> None:
    with up(tmp_path / ".run", "--redis", "--exit", environment=SYNTHETIC) as run:
        assert run.exit_code() == 0, run.output
        assert "Through Redis 20 of 20 questions got their vectors" in run.output


@pytest.mark.redis
def test_one_s_own_redis_is_used_and_named(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        run_folder = tmp_path / ".run"
        with up(run_folder, "--redis", server.address, environment=SYNTHETIC) as run:
            run.wait_for("Serving.")
            assert json.loads((run_folder / "stack.json").read_text())["redis"] == server.address
            assert "BLPOP me 10" in run.output
            children = run.children()
            run.process.send_signal(signal.SIGTERM)
            assert run.exit_code() == 0, run.output
            assert_gone(children)
        with server.client() as client:
            assert client.xlen("embed.requests.v1") == 0
