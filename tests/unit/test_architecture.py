"""docs/architecture.md says where a record and a call go, and that is where they go."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiokafka import TopicPartition

from aggregator.registry import KINDS
from aggregator.scheduler.work_item import Task
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.outgoing import OutgoingRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.architecture_page import ROOT, entered, listed, types
from tests.support.faked_pipeline import MODEL, FakedPipeline, new_engine
from tests.support.kafka_source import KafkaSourceOverFakes
from tests.support.virtual_time import in_virtual_time

RECORD, CALL = "A record's way, file by file", "A call's way, file by file"
MOST_FILES = {RECORD: 24, CALL: 14}
ELSEWHERE = {
    "aggregator/sources/kafka/producer.py",
    "aggregator/replicas/client.py",
}
"""Faked here; seen with a real broker and server in tests/integration."""


@pytest.mark.parametrize("title", MOST_FILES)
def test_the_way_is_short_and_each_file_is_there(title: str) -> None:
    files = listed(title)
    assert 5 < len(files) <= MOST_FILES[title]
    assert all((ROOT / file).is_file() for file in files)


@pytest.mark.parametrize("title", [RECORD, CALL])
def test_its_types_are_few_and_each_is_named_where_it_comes_about(title: str) -> None:
    found = types(title)
    assert 1 < len(found) <= 10
    for kind, file in found.items():
        assert re.search(rf"\b{kind}\b", (ROOT / file).read_text(encoding="utf-8")), f"{file} knows no {kind}"


@in_virtual_time
async def test_a_record_takes_the_way_listed_until_its_offset_is_committed() -> None:
    files = listed(RECORD)
    settings = KafkaSettings(topics=(TopicSettings(name="in", model=MODEL),), reply_topic="out", group_id="g")
    over, faked = KafkaSourceOverFakes(settings, "in", "out", "in-dlt"), FakedPipeline(new_engine())
    faked.pipeline.sources[:] = [over.source]
    async with over.started(), faked.started():
        await asyncio.sleep(1)
        with entered(files) as found:
            value = pb.EmbedRequest(inputs=[pb.Input(text="1 2")]).SerializeToString()
            over.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
            await asyncio.sleep(1 + settings.client.commit_interval_s)
    assert over.kafka.records("out")
    assert over.kafka.committed == {TopicPartition("in", 0): 1}
    assert found == set(files) - ELSEWHERE


@pytest.mark.parametrize("task", Task)
def test_a_task_is_named_in_one_file_and_asked_for_elsewhere(task: Task) -> None:
    named = re.compile(rf"\bTask\.{task.name}\b")
    files = [file for file in (ROOT / "aggregator").rglob("*.py") if named.search(file.read_text(encoding="utf-8"))]
    assert len(files) == (task in {kind.task for kind in KINDS})


def test_names_of_tests_are_under_70_characters() -> None:
    for file in (ROOT / "tests").rglob("test_*.py"):
        names = re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [name for name in names if len(name) >= 70], file
