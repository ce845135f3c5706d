"""What clients are told of the cluster's security, and what is said when a file or a name is missing."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from pydantic import SecretStr

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import client_options, committed_offsets, topic_partitions
from k8s.pod.errors import StartError

SASL = "SASL_PLAINTEXT"


def options(**changes: Any) -> dict[str, Any]:
    return client_options(KafkaSettings.model_validate(changes))


def test_tls_verifies_the_broker() -> None:
    context = options(security_protocol="SSL")["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_a_certificate_that_cannot_be_read_stops_the_start(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (empty, tmp_path / "missing.pem"):
        with pytest.raises(StartError, match=rf"kafka\.ssl\.{name}"):
            options(security_protocol="SASL_SSL", ssl={name: path})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_comes_from_the_settings_or_better_from_a_file(mechanism: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(" from file \r\n")
    given = SecretStr("from settings")
    sasl = {"mechanism": mechanism, "username": "app", "password": given}
    assert options(security_protocol=SASL, sasl=sasl)["sasl_plain_password"] == "from settings"
    both = options(security_protocol=SASL, sasl={**sasl, "password_file": secret})
    assert (both["sasl_plain_username"], both["sasl_plain_password"]) == ("app", " from file ")


@pytest.mark.parametrize("changes", [{"username": "app"}, {"password": "x"}])
def test_a_name_and_a_password_are_needed(changes: dict[str, str]) -> None:
    with pytest.raises(StartError, match=r"needs kafka\.sasl\.username and a password"):
        options(security_protocol=SASL, sasl=changes)


async def test_a_bearer_token_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    provider = options(security_protocol="SASL_SSL", sasl={"mechanism": "OAUTHBEARER", "token_file": file})[
        "sasl_oauth_token_provider"
    ]
    assert await provider.token() == "first"
    file.write_text("second\n")
    assert await provider.token() == "second"


def test_a_bearer_token_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"kafka\.sasl\.token_file"):
        options(security_protocol="SASL_SSL", sasl={"mechanism": "OAUTHBEARER"})
    with pytest.raises(StartError, match=r"kafka\.sasl\.token_file: .* cannot be read"):
        options(security_protocol="SASL_SSL", sasl={"mechanism": "OAUTHBEARER", "token_file": tmp_path / "none"})


async def test_a_file_caught_in_rotation_is_an_outage_to_who_asks_at_work(tmp_path: Path) -> None:
    empty = tmp_path / "password"
    empty.write_text("")
    sasl = {"mechanism": "PLAIN", "username": "app", "password_file": empty}
    settings = KafkaSettings.model_validate({"security_protocol": SASL, "sasl": sasl})
    with pytest.raises(KafkaError, match="a password"):
        await topic_partitions(settings)
    with pytest.raises(KafkaError, match="a password"):
        await committed_offsets(settings, [])
