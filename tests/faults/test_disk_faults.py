"""Disks fill up, or spoil what is on them, under load: the others go on, and nothing is passed over in silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker
from tests.faults.kafka_cluster import KafkaCluster
from tests.faults.row_stack import PATIENCE_S, RowStack, opened
from tests.faults.rows import Figures
from tests.faults.test_broker_faults import leader
from tests.faults.topic_logs import read_topics
from tests.support.kafka_client import committed
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

_DISK_BYTES = 256 * 1024 * 1024
_BATCH_HEAD = 12
_LAST_OFFSET_AT = 23


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers, each with its data on a small disk in memory."""
    cluster = KafkaCluster(tmp_path / "cluster")
    with contextlib.ExitStack() as resources:
        for disk in (broker.folder / "data" for broker in cluster.brokers):
            disk.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(disk)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no disk of memory can be mounted: {done.stderr.strip()}")
            resources.callback(subprocess.run, ["umount", str(disk)], check=True)
        resources.enter_context(cluster)
        yield cluster


@pytest_asyncio.fixture
async def on_small_disks(small_disks: KafkaCluster, tmp_path: Path) -> AsyncIterator[RowStack]:
    async with opened(RowStack(tmp_path, small_disks.bootstrap, partitions=6, replication=3)) as stack:
        yield stack


def fill(disk: Path) -> Path:
    """Take all that is left on a disk; returns the file that holds it."""
    ballast = disk / "ballast"
    size = 0
    with ballast.open("wb") as file:
        while free := shutil.disk_usage(disk).free:
            with contextlib.suppress(OSError):  # the broker was quicker
                os.posix_fallocate(file.fileno(), size, free)
                size += free
    return ballast


@pytest.mark.privileged
@pytest.mark.row("the disk of one of three brokers is full, until there is room again")
async def test_a_full_disk_is_got_round(on_small_disks: RowStack, small_disks: KafkaCluster, figures: Figures) -> None:
    stack = on_small_disks
    await stack.server()
    for _ in range(2):
        await stack.aggregator()
    async with stack.under_load(200):
        victim = await leader(stack, small_disks)
        async with stack.fault():
            ballast = fill(victim.folder / "data")
            await until(lambda: victim.exit_code is not None, PATIENCE_S)  # a broker that cannot write ends itself
        await stack.answers(1000)
        ballast.unlink()
        await asyncio.to_thread(victim.start)
        await stack.answers(600)
    verdict = await stack.passes(figures)
    assert verdict.recovery_s < 60.0


def spoil(log: Path, from_offset: int) -> tuple[range, int]:
    """Change a bit in the first batch that starts at an offset or later; returns its offsets, and where the bit is."""
    data = log.read_bytes()
    at = 0
    while int.from_bytes(data[at : at + 8], "big") < from_offset:
        at += _BATCH_HEAD + int.from_bytes(data[at + 8 : at + _BATCH_HEAD], "big")
    first = int.from_bytes(data[at : at + 8], "big")
    last = first + int.from_bytes(data[at + _LAST_OFFSET_AT : at + _LAST_OFFSET_AT + 4], "big")
    middle = at + _BATCH_HEAD + int.from_bytes(data[at + 8 : at + _BATCH_HEAD], "big") // 2
    turn_bit(log, middle)
    return range(first, last + 1), middle


def turn_bit(log: Path, place: int) -> None:
    """Change a bit, or change it back."""
    with log.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.row("a record batch corrupt on the broker's disk (CRC): it becomes one dead letter")
async def test_a_spoilt_batch_is_never_passed_over_in_silence(
    broker: KafkaBroker, stack: RowStack, figures: Figures
) -> None:
    topic = stack.topics.requests
    await stack.server()
    first = await stack.aggregator()
    async with stack.under_load():
        assert await stack.stop(first) == [0]
        await stack.load.send(2000)
    await stack.load.flush()
    reached = (await committed(stack.kafka, topic))[topic, 0]
    log = broker.folder / "data" / f"{topic}-0" / f"{0:020}.log"
    async with stack.fault():
        await asyncio.to_thread(broker.stop)
        spoilt, place = spoil(log, reached + 1)
        batch = log.read_bytes()
        await asyncio.to_thread(broker.start)
        second = await stack.aggregator()
        assert await stack.drained()
    reader = metrics(second.metrics_address)
    corrupt, counted = (reader.value(f"tokenbatch_consumer_{name}_total", topic=topic) for name in ("corrupt", "lost"))
    async with stack.under_load():
        await stack.answers(600)
    assert await stack.drained()
    letters = [record async for record in read_topics(stack.kafka, stack.topics.dead_letters)]
    await asyncio.to_thread(broker.stop)
    turn_bit(log, place)  # so that the checker can read what was in it
    await asyncio.to_thread(broker.start)
    gone = [key for key, (partition, offset) in stack.load.acknowledged.items() if (partition, offset) in where(spoilt)]
    await stack.passes(figures, without=gone, spoilt=len(gone), counted=counted)
    assert [letter.value in batch for letter in letters] == [True]
    assert corrupt == 1
    assert counted == len(gone) == len(spoilt)


def where(offsets: range) -> set[tuple[int, int]]:
    return {(0, offset) for offset in offsets}
