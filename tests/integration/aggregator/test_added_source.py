"""A source that somebody adds, as README's table says, is served like those that are there."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import numpy as np

from aggregator.app import Aggregator
from aggregator.settings.aggregator import AggregatorSettings
from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.aggregator import folder_source
from tests.integration.aggregator.folder_source import FolderSource
from tests.support.until import until


async def test_a_folder_of_text_files_is_embedded(quick: ModelServer, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"text number {number % 10}" if number else "")
    settings = AggregatorSettings.model_validate(
        {
            "kafka": {"enabled": False},
            "grpc": {"bind": ""},
            "models": [{"name": DEFAULT_MODEL_NAME, "servers": [quick.address]}],
            "telemetry": {"metrics_bind": "127.0.0.1:0"},
        }
    )
    aggregator, stop = Aggregator(settings), asyncio.Event()
    aggregator.sources.append(FolderSource(tmp_path, DEFAULT_MODEL_NAME))
    work = asyncio.create_task(aggregator.run(stop))
    await until(lambda: len(list(tmp_path.glob("*.reply"))) == 20)
    stop.set()
    await work
    replies = [pb.EmbedResponse.FromString((tmp_path / f"{number}.reply").read_bytes()) for number in range(20)]
    assert [reply.request_id for reply in replies] == [str(number) for number in range(20)]
    assert replies[0].status.message == "the input is empty: send a text, or leave it out"
    vectors = np.array([np.frombuffer(reply.embeddings[0].embedding, np.float32) for reply in replies[1:]])
    assert np.array_equal(vectors[:9], vectors[10:])  # the same ten texts again
    assert len(np.unique(vectors, axis=0)) == 10


def test_it_takes_sixty_lines() -> None:
    code = inspect.getsource(folder_source).partition("_LOOK_EVERY_S")[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 60
