"""A start that cannot work ends at once, with a line that says what to do; `--check` says it before."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from loadtest.stack import constants
from loadtest.stack.child import Child
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from loadtest.stack.service import ModelServer
from tests.support.kafka_client import make_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

PREFIX = "TOKENBATCH_AGGREGATOR_"
PATIENCE_S = 100.0
UNFOLLOWED = '[{"name": "m", "servers": ["dns://localhost:1"]}]'


def environment(**settings: str) -> Mapping[str, str]:
    """The settings as the environment tells them; on ports of their own."""
    told = {"GRPC__BIND": "127.0.0.1:0", "TELEMETRY__METRICS_BIND": "127.0.0.1:0", **settings}
    return {**os.environ, **{PREFIX + name: value for name, value in told.items()}}


def aggregator(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [*constants.command("aggregator"), *arguments]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def model(*servers: str, name: str = "all-minilm-l6-v2") -> str:
    addresses = ", ".join(f'"{server}"' for server in servers)
    return f'[{{"name": "{name}", "servers": [{addresses}]}}]'


def topics(name: str, *, create: bool = False) -> Mapping[str, str]:
    return {
        "KAFKA__TOPICS": f'[{{"name": "{name}.requests"}}]',
        "KAFKA__REPLY_TOPIC": f"{name}.replies",
        "KAFKA__CREATE_TOPICS": str(create).lower(),
    }


@pytest.fixture
def taken_port() -> Iterator[int]:
    """One that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


async def test_check_says_that_all_is_well_and_keeps_secrets(kafka: KafkaBroker, quick: ModelServer) -> None:
    await make_topics(kafka.bootstrap, "checked.requests", "checked.requests-dlt", "checked.replies")
    ended = aggregator(
        "--check",
        "--show-settings",
        **topics("checked"),
        KAFKA__BOOTSTRAP_SERVERS=kafka.bootstrap,
        KAFKA__SASL__PASSWORD="hunter2",
        MODELS=model(quick.address),
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert f"kafka {kafka.bootstrap}: ok\n" in ended.stdout
    assert f"model server {quick.address}: all-minilm-l6-v2 " in ended.stdout
    assert "warning: kafka: max.message.bytes of checked.requests-dlt is 1048588: make it 65536 more" in ended.stdout
    assert ended.stdout.endswith("\nok\n")
    assert "reply_topic: checked.replies" in ended.stdout
    assert "hunter2" not in ended.stdout
    told = {**topics("checked"), "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "MODELS": model(quick.address)}
    assert "reply_topic" not in aggregator("--check", **told).stdout


def test_check_creates_nothing_but_says_what_a_start_would(kafka: KafkaBroker, quick: ModelServer) -> None:
    reachable = {"KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "MODELS": model(quick.address)}
    for _ in range(2):
        ended = aggregator("--check", **topics("unmade", create=True), **reachable)
        assert ended.returncode == 0
        assert (
            "unmade.requests, unmade.replies, unmade.requests-dlt are not there yet, and will be created"
            in ended.stdout
        )
    ended = aggregator("--check", **topics("unmade"), **reachable)
    assert ended.returncode == 1
    assert "problem: kafka: topics unmade.requests, unmade.replies, unmade.requests-dlt are missing" in ended.stdout


def test_check_names_every_problem(quick: ModelServer) -> None:
    kafka, silent = free_ports(2)
    ended = aggregator(
        "--check",
        KAFKA__BOOTSTRAP_SERVERS=f"localhost:{kafka}",
        MODELS=model(f"localhost:{silent}", quick.address, name="another-model"),
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert f"problem: kafka: no broker answers at localhost:{kafka}" in ended.stdout
    assert f"problem: nothing answers at localhost:{silent} (models[0].servers[0]): " in ended.stdout
    served = f"problem: model server {quick.address} (models[0].servers[1]) serves all-minilm-l6-v2, not another-model"
    assert served in ended.stdout
    assert ended.stdout.endswith("\n3 problems\n")


def test_check_tells_a_wrong_broker_in_one_line() -> None:
    """Other lines, of libraries and of settings, would hide it."""
    (port,) = free_ports(1)
    ended = aggregator("--check", KAFKA__BOOTSTRAP_SERVERS=f"localhost:{port},nowhere.invalid:1", MODELS=UNFOLLOWED)
    assert (ended.returncode, ended.stderr) == (1, "")
    (line,) = [line for line in ended.stdout.splitlines() if "kafka" in line]
    assert line.startswith("problem: kafka: no broker answers at ")
    assert f"localhost:{port} (" in line
    assert "nowhere.invalid:1 (" in line
    assert line.endswith("; is kafka.bootstrap_servers right, and kafka.security_protocol?")


def test_check_names_every_file_name_and_port_that_cannot_be_used(taken_port: int) -> None:
    missing = "/not/there"
    ended = aggregator(
        "--check",
        KAFKA__SECURITY_PROTOCOL="SASL_SSL",
        KAFKA__BOOTSTRAP_SERVERS="nowhere.invalid:1",
        KAFKA__SASL=f'{{"mechanism": "OAUTHBEARER", "token_file": "{missing}"}}',
        KAFKA__SSL=f'{{"ca_file": "{missing}"}}',
        GRPC__TLS=f'{{"cert_file": "{missing}", "key_file": "{missing}", "client_ca_file": "{missing}"}}',
        GRPC__AUTHENTICATION=f'{{"tokens_file": "{missing}", "jwt": {{"jwks_file": "{missing}"}}}}',
        TOKENIZER='{"cache": "/proc/no"}',
        HTTP__BIND=f"127.0.0.1:{taken_port}",
        MODELS='[{"name": "m", "servers": ["nowhere.invalid:1", "dns://nowhere.invalid:2", "k8s://a.b:3"]}]',
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    problems = [line for line in ended.stdout.splitlines() if line.startswith("problem: ")]
    for setting in (
        *("kafka.sasl.token_file", "kafka.ssl.ca_file", "tokenizer.cache", "http.bind"),
        *("grpc.tls.cert_file", "grpc.tls.key_file", "grpc.tls.client_ca_file"),
        *("grpc.authentication.tokens_file", "grpc.authentication.jwt.jwks_file"),
        *(f"models[0].servers[{place}]" for place in range(3)),  # also where the resolver takes too long
    ):
        assert any(setting in problem for problem in problems), (setting, problems)


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
