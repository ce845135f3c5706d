"""`--check` says before a start why it could not work, and creates nothing."""

from __future__ import annotations

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from loadtest.stack.service import ModelServer
from tests.integration.aggregator.starts import aggregator, model, topics
from tests.support.kafka_client import make_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

UNFOLLOWED = '[{"name": "m", "servers": ["dns://localhost:1"]}]'


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
