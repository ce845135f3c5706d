"""Aggregators with a store, for OpenAI's own client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from openai import OpenAI
from openai.types import Batch

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import Aggregator, ModelServer
from tests.support.kafka_client import Topics
from tests.support.processes import aggregators, synthetic

URL: Final = "/v1/embeddings"
FINAL = ("completed", "failed", "expired", "cancelled")


def client_of(address: str, tenant: str = "me") -> OpenAI:
    """OpenAI's client, as it comes."""
    return OpenAI(base_url=f"http://{address}/v1", api_key="none", default_headers={"x-tenant": tenant}, max_retries=4)


def lines(count: int, *, bad: Callable[[int], bool] = lambda _: False, **body: Any) -> bytes:
    """So many requests; those that are `bad` have no text."""
    return b"".join(
        json.dumps(
            {
                "custom_id": f"line-{each}",
                "method": "POST",
                "url": URL,
                "body": {"model": "minilm", "input": "" if bad(each) else f"question {each}", **body},
            }
        ).encode()
        + b"\n"
        for each in range(count)
    )


@dataclass(frozen=True, slots=True)
class Office:
    """A client of one aggregator."""

    client: OpenAI

    def begin(self, data: bytes, window: Any = "24h") -> Batch:
        """Upload a file, and begin its batch."""
        file = self.client.files.create(file=("questions.jsonl", data), purpose="batch")
        return self.client.batches.create(input_file_id=file.id, endpoint=URL, completion_window=window)

    def until(self, batch: Batch, is_over: Callable[[Batch], bool], timeout_s: float = 300.0) -> Batch:
        """Look at a batch until it is as expected."""
        deadline_s = time.monotonic() + timeout_s
        while not is_over(batch):
            assert time.monotonic() < deadline_s, batch
            time.sleep(0.1)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def ended(self, batch: Batch, timeout_s: float = 300.0) -> Batch:
        return self.until(batch, lambda batch: batch.status in FINAL, timeout_s)

    def written(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a file that a batch wrote."""
        return (
            []
            if file_id is None
            else [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]
        )

    def answered(self, batch: Batch) -> tuple[list[str], list[str]]:
        """The custom ids in both files of a batch."""
        output, errors = (self.written(each) for each in (batch.output_file_id, batch.error_file_id))
        return [each["custom_id"] for each in output], [each["custom_id"] for each in errors]


@dataclass(frozen=True, slots=True)
class Offices:
    """Aggregators that share a store, which all end with the tests of a file."""

    start: Callable[..., Aggregator]
    server: ModelServer
    store: Path


@pytest.fixture(scope="module")
def offices(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offices]:
    """Aggregators to be started over one store, topic and model server."""
    folder = tmp_path_factory.mktemp("batches")
    store = folder / "store"
    with aggregators(kafka, folder, folder.name) as start, synthetic(folder / "model-server.log") as server:
        topics = Topics(f"{folder.name}.requests", f"{folder.name}.replies")

        def office(settings: Mapping[str, str] | None = None) -> Aggregator:
            told = {
                "BATCHES__STORE": f"file://{store}",
                "BATCHES__TOPIC": f"{folder.name}.chunks",
                "KAFKA__CLIENT": '{"session_timeout_s": 6}',
                **(settings or {}),
            }
            return start(server, topics=topics, settings=told).process

        yield Offices(office, server, store)


@pytest.fixture(scope="module")
def office(offices: Offices) -> Office:
    """A client of an aggregator that several tests share."""
    return Office(client_of(offices.start().http_address))
