"""SASL and TLS settings pass through to Kafka, and what they keep secret stays so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.stack import constants
from loadtest.stack.service import Aggregator, ModelServer
from tests.integration.security.broker import PASSWORD, USER, SecureKafka

PREFIX = "TOKENBATCH_AGGREGATOR_"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "client certificate")


def settings_for(mechanism: str, kafka: SecureKafka) -> dict[str, str]:
    """The aggregator's environment, without its prefix."""
    folder = kafka.folder
    common = {"KAFKA__SSL__CA_FILE": str(folder / "ca.crt")}
    if mechanism == "client certificate":
        return {
            **common,
            "KAFKA__SECURITY_PROTOCOL": "SSL",
            "KAFKA__BOOTSTRAP_SERVERS": kafka.ssl,
            "KAFKA__SSL__CERT_FILE": str(folder / "client.crt"),
            "KAFKA__SSL__KEY_FILE": str(folder / "client.key"),
        }
    common |= {
        "KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA__BOOTSTRAP_SERVERS": kafka.sasl_ssl,
        "KAFKA__SASL__MECHANISM": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(kafka.token() + "\n")
        return {**common, "KAFKA__SASL__TOKEN_FILE": str(token)}
    if mechanism == "SCRAM-SHA-512":  # by a file, as Kubernetes mounts secrets
        password = folder / "password"
        password.write_text(PASSWORD + "\n")
        return {**common, "KAFKA__SASL__USERNAME": USER, "KAFKA__SASL__PASSWORD_FILE": str(password)}
    return {**common, "KAFKA__SASL__USERNAME": USER, "KAFKA__SASL__PASSWORD": PASSWORD}


_SOON = '{"aggregator.settings.aggregator:LifecycleSettings.connect_timeout_s": 6}'


def check(settings: Mapping[str, str], server: ModelServer) -> subprocess.CompletedProcess[str]:
    models = json.dumps([{"name": server.model, "servers": [server.address]}])
    told = {"KAFKA__CREATE_TOPICS": "true", "MODELS": models, "CONSTANTS": _SOON, **settings}
    environment = {**os.environ, **{PREFIX + name: value for name, value in told.items()}}
    command = [*constants.command("aggregator"), "--check"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_requests_and_replies_pass_and_no_secret_is_logged(
    mechanism: str, secure_kafka: SecureKafka, model_server: ModelServer, tmp_path: Path
) -> None:
    topic, replies = f"requests-{mechanism.replace(' ', '-')}", f"replies-{mechanism.replace(' ', '-')}"
    settings = {
        **settings_for(mechanism, secure_kafka),
        "KAFKA__TOPICS": json.dumps([{"name": topic}]),
        "KAFKA__REPLY_TOPIC": replies,
        "KAFKA__PARTITIONS": "2",
        "TELEMETRY__LOG_LEVEL": "debug",
    }
    log = tmp_path / "aggregator.log"
    bootstrap = settings.pop("KAFKA__BOOTSTRAP_SERVERS")
    summary = tmp_path / "summary.json"
    with Aggregator(log, kafka=bootstrap, model=model_server.model, servers=[model_server.address], settings=settings):
        command = [sys.executable, "-m", "loadtest", "produce", "--bootstrap", secure_kafka.broker.bootstrap]
        command += ["--request-topic", topic, "--reply-topic", replies, "--count", "50", "--json", str(summary)]
        subprocess.run(command, check=True, timeout=60)
    assert json.loads(summary.read_text())["replies"] == 50
    logged = log.read_text()
    assert PASSWORD not in logged
    assert secure_kafka.token()[:20] not in logged  # the header, which all of its tokens share


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("mechanism", "wrong", "says"),
    [
        ("PLAIN", {"KAFKA__SASL__PASSWORD": "wrong-secret"}, "credentials"),
        ("PLAIN", {"KAFKA__SASL__PASSWORD": ""}, "password"),
        ("PLAIN", {"KAFKA__SSL__CA_FILE": "stranger.crt"}, "TLS"),
        (
            "client certificate",
            {"KAFKA__SSL__CERT_FILE": "stranger.crt", "KAFKA__SSL__KEY_FILE": "stranger.key"},
            "kafka",
        ),
        ("PLAIN", {"KAFKA__SSL__CA_FILE": "nowhere.crt"}, "security file"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(
    mechanism: str, wrong: dict[str, str], says: str, secure_kafka: SecureKafka, model_server: ModelServer
) -> None:
    folder = secure_kafka.folder
    wrong = {name: str(folder / value) if name.endswith("_FILE") else value for name, value in wrong.items()}
    done = check({**settings_for(mechanism, secure_kafka), **wrong}, model_server)
    assert done.returncode == 1, done.stdout + done.stderr
    [problem] = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert says in problem
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.kafka
def test_an_expired_token_is_refused_and_a_fresh_one_in_the_file_is_taken(
    secure_kafka: SecureKafka, model_server: ModelServer
) -> None:
    settings = settings_for("OAUTHBEARER", secure_kafka)
    token = Path(settings["KAFKA__SASL__TOKEN_FILE"])
    token.write_text(secure_kafka.token(seconds=-120))
    assert check(settings, model_server).returncode == 1
    token.write_text(secure_kafka.token())
    assert check(settings, model_server).returncode == 0
