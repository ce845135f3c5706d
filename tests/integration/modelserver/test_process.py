"""The model server as a process: its start, its end, and what it does when batches or engines go wrong."""

from __future__ import annotations

import csv
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from modelserver.model_files import locate
from tests.support.model_server_process import (
    CALL_S,
    START_S,
    ServerProcess,
    code_of,
    environment,
    health_stub,
    imported_libraries,
    run,
    serving,
    synthetic,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One for those who ask a server that is well."""
    with serving(**synthetic()) as started:
        yield started


def test_it_starts_without_torch_and_says_where_it_listens(server: ServerProcess) -> None:
    assert server.event("serving")["model"] == "all-minilm-l6-v2"
    assert "libtorch" not in imported_libraries(server.pid)
    stages = [line["stage"] for line in server.log if "stage" in line]
    assert stages == ["listen", "load", "load", "warm-up", "warm-up", "serving"]


def test_metrics_are_gathered_per_step(server: ServerProcess) -> None:
    server.embed([[101, 102], []])
    server.embed([[101, 7, 102]])
    server.until_steps(2)
    text = urlopen(f"http://{server.metrics_address}/metrics", timeout=CALL_S).read().decode()
    ready = urlopen(f"http://{server.metrics_address}/readyz", timeout=CALL_S)
    assert ready.status == 200
    assert 'tokenbatch_engine_duration_seconds_count{composition="single",task="embed"} 2' in text
    assert 'tokenbatch_engine_step_tokens_sum{composition="single",task="embed"} 5' in text
    assert 'tokenbatch_engine_refused_total{code="INVALID_ARGUMENT",what="query"} 1' in text
    assert "tokenbatch_engine_queued_tokens 0" in text
    assert "tokenbatch_engine_idle_seconds_count 2" in text


def test_it_pools_spans_beside_whole_queries(server: ServerProcess) -> None:
    assert server.description.pools_spans
    queries = [[101, 7, 8, 102], [101, 9, 102]]
    marks = {"span_counts": np.array([2, 0], "<i4").tobytes(), "spans": np.array([0, 1, 1, 3], "<i4").tobytes()}
    found = server.embed(queries, **marks)
    alone = server.embed([[101], [7, 8], queries[1]])
    assert (found.faults, found.matrix.tolist()) == ([], alone.matrix.tolist())


def test_on_sigterm_it_answers_what_it_accepted_refuses_more_exits_with_0() -> None:
    with serving(**synthetic(SYNTHETIC__FIXED_S="2")) as server:
        watch = health_stub(server).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        accepted = [server.send([[101, word, 102]], isolate=True) for word in (7, 8, 9)]
        server.until_queued(2 * 3)
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(server.stop)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as refused:
                server.embed([[101, 102]])
            assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE
            assert all(len(call.result().embeddings) == 384 * 4 for call in accepted)
            assert stopping.result() == 0


def test_check_says_what_is_served_and_the_command_line_has_the_last_word() -> None:
    ended = run("--bind", "127.0.0.1:0", "--check", **synthetic())
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("model all-minilm-l6-v2, revision sha256:")
    assert ended.stdout.endswith("\nok\n")
    assert "bind: 127.0.0.1:0\n" in run("--bind", "127.0.0.1:0", "--show-settings", **synthetic()).stdout


def test_check_names_a_port_that_is_taken_and_files_that_are_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        profile = {"PROFILE__ENABLED": "true", "PROFILE__FILE": "/not/there", "PROFILE__CACHE": "/proc/no"}
        ended = run("--bind", bind, "--check", **synthetic(**profile))
    assert ended.returncode == 1, ended.stderr
    assert f"problem: grpc.bind: {bind} cannot be bound (Address already in use)" in ended.stdout
    assert "problem: profile.file: /not/there cannot be read (No such file or directory)" in ended.stdout
    assert "problem: profile.cache: /proc/no cannot be written to" in ended.stdout


def with_entries(**entries: object) -> Callable[[Path], None]:
    """Changes config.json."""

    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **entries}))

    return spoil


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (with_entries(vocab_size=100), "it is another model's"),
        (truncate, "is damaged"),
    ],
)
def test_check_and_the_start_refuse_alike_files_that_cannot_be_served(
    spoil: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(locate("", ""), tmp_path / "model")
    spoil(folder)
    checked, started = run("--check", MODEL__PATH=str(folder)), run(MODEL__PATH=str(folder))
    assert (checked.returncode, started.returncode) == (2, 2)
    lines = [ended.stderr.splitlines()[-1] for ended in (checked, started)]
    assert lines[0] == lines[1]
    assert said in lines[0]


@pytest.mark.privileged
@pytest.mark.parametrize("shm", ["mount -t tmpfs -o ro tmpfs /dev/shm", "mount -t tmpfs tmpfs /dev"])
def test_a_machine_without_shared_memory_is_told_so_at_once(shm: str) -> None:
    script = f'{shm} || exit 77; exec "$@"'
    command = ["unshare", "--mount", "bash", "-c", script, "sh", sys.executable, "-m", "modelserver", "--check"]
    ended = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=START_S, check=False)
    if ended.returncode in (1, 77) and "modelserver" not in ended.stderr:
        pytest.skip(f"nothing may be mounted here: {ended.stderr.strip()}")
    assert ended.returncode == 2
    assert "vLLM needs semaphores in /dev/shm" in ended.stderr
    assert "mount -t tmpfs -o mode=1777 tmpfs /dev/shm" in ended.stderr


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(**synthetic(GRPC__BIND=f"127.0.0.1:{port}"))
    assert ended.returncode == 2
    assert f"grpc.bind 127.0.0.1:{port} cannot be bound" in ended.stderr


def test_a_profile_can_be_measured_without_serving_and_supplied_later(tmp_path: Path) -> None:
    settings = synthetic(SYNTHETIC__FIXED_S="0.002", SYNTHETIC__PER_TOKEN_S="0.00002")
    ended = run("profile", "--out", str(tmp_path), ENGINE__STEP_TOKENS="128", **settings)
    assert ended.returncode == 0, ended.stderr
    profile = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    assert profile["curve"]["max_tokens"] == 128
    with (tmp_path / "profile.csv").open(encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert [int(row["step_tokens"]) for row in rows] == [8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert np.allclose([float(row["step_duration_s"]) for row in rows], [point[1] for point in profile["points"]])


def test_a_model_of_ones_own_is_served_under_its_folders_name(tmp_path: Path) -> None:
    own = tmp_path / "my-model"
    own.symlink_to(locate("", ""))
    with serving(**synthetic(MODEL__PATH=str(own), MODEL__REVISION="v7")) as server:
        assert (server.description.model, server.description.model_revision) == ("my-model", "v7")


@pytest.mark.vllm
@pytest.mark.timeout(400)
def test_sigterm_while_the_model_loads_ends_it_at_once() -> None:
    server = ServerProcess({})
    try:
        server.event("loading the model")
        assert server.stop(CALL_S) == 0
    finally:
        server.kill()
