"""Real processes: one Kafka, one quick engine, and aggregators as each test wants them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from tests.support.processes import StartAggregator, aggregators, synthetic


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """An engine that computes nothing; token id 9947 ("poison") makes it fail."""
    with synthetic(tmp_path_factory.mktemp("quick") / "log", SYNTHETIC__POISON_TOKEN_ID="9947") as server:
        yield server


@pytest.fixture
def start_aggregator(kafka: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartAggregator]:
    """Start aggregators; all end with the test."""
    # The name alone is not enough: cut short, that of a parametrized test is its sibling's too.
    prefix = f"{request.node.originalname[:40]}-{secrets.token_hex(4)}"
    with aggregators(kafka, tmp_path, prefix) as start:
        yield start


@pytest.fixture
def taken_port() -> Iterator[int]:
    """One that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])
