"""The Kafka Streams job of docs/flink_kafka_streams.md gives each document the vector of its last text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import Stack
from tests.clients.snippets import read
from tests.clients.test_snippets import run

COMMAND = "mvn --batch-mode --quiet compile exec:java -Dexec.mainClass=Try"


@pytest.mark.timeout(600)  # what is downloaded the first time
def test_each_document_gets_the_vector_of_its_last_text(tmp_path: Path, stack: Stack) -> None:
    read().write("streams", tmp_path / "streams")
    assert run(COMMAND, tmp_path / "streams", stack) == ["documents: 1000 of their last text: true dimensions: 384"]
