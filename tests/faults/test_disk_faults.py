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

from loadtest.stack.kafka import KafkaBroker, KafkaCluster
from tests.faults.rows import Figures
from tests.faults.scene import Scene, opened
from tests.faults.test_broker_faults import leader
from tests.faults.topic_logs import end_offsets
from tests.integration.aggregator.desk import committed
from tests.integration.aggregator.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

_DISK_BYTES = 256 * 1024 * 1024
_BATCH_HEAD = 12
_LAST_OFFSET_AT = 23


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers, each with its data on a small disk of its own, which is memory."""
    cluster = KafkaCluster(tmp_path / "cluster")
    with contextlib.ExitStack() as stack:
        for disk in (broker.folder / "data" for broker in cluster.brokers):
            disk.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(disk)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no disk of memory can be mounted: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", str(disk)], check=True)
        stack.enter_context(cluster)
        yield cluster


@pytest_asyncio.fixture
async def on_small_disks(small_disks: KafkaCluster, tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene with three copies of everything on those."""
    async with opened(Scene(tmp_path, small_disks.bootstrap, partitions=6, replication=3)) as scene:
        yield scene


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


@pytest.mark.row("the disk of one of three brokers is full, until there is room again")
async def test_a_full_disk_is_got_round(on_small_disks: Scene, small_disks: KafkaCluster, figures: Figures) -> None:
    scene = on_small_disks
    await scene.server()
    for _ in range(2):
        await scene.aggregator()
    async with scene.under_load(200):
        victim = await leader(scene, small_disks)
        async with scene.fault():
            ballast = fill(victim.folder / "data")
            async with asyncio.timeout(90):
                while victim.exit_code is None:  # noqa: ASYNC110 - a broker that cannot write ends itself
                    await asyncio.sleep(0.2)
        await scene.answers(1000)
        ballast.unlink()
        await asyncio.to_thread(victim.start)
        await scene.answers(600)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
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


@pytest.mark.row("a record batch corrupt on the broker's disk (CRC): its partition waits until skipping is allowed")
async def test_a_spoilt_batch_is_never_passed_over_in_silence(
    own_kafka: KafkaBroker, own_scene: Scene, figures: Figures
) -> None:
    broker, scene = own_kafka, own_scene
    topic = scene.topics.requests
    await scene.server()
    first = await scene.aggregator()
    async with scene.under_load():
        assert await scene.stop(first) == [0]
        await scene.load.send(2000)
    await scene.load.flush()
    reached = (await committed(scene.kafka, topic))[topic, 0]
    log = broker.folder / "data" / f"{topic}-0" / f"{0:020}.log"
    async with scene.fault():
        await asyncio.to_thread(broker.stop)
        spoilt, place = spoil(log, reached + 1)
        await asyncio.to_thread(broker.start)
        waiting = await scene.aggregator()
        ends = await end_offsets(scene.kafka, topic)
        stands = {**ends, (topic, 0): spoilt.start}
        async with asyncio.timeout(90):
            while await committed(scene.kafka, topic) != stands:  # noqa: ASYNC110 - a group calls nobody
                await asyncio.sleep(0.2)
        found = metrics(waiting.metrics_address).value("embed_consumer_corrupt_total", topic=topic)
        assert await scene.stop(waiting) == [0]
        skipping = await scene.aggregator(settings={"KAFKA__SKIP_CORRUPT_BATCHES": "true"})
        assert await scene.drained()
    counted = metrics(skipping.metrics_address).value("embed_consumer_lost_total", topic=topic)
    async with scene.under_load():
        await scene.answers(600)
    assert await scene.drained()
    await asyncio.to_thread(broker.stop)
    turn_bit(log, place)  # so that the checker can read what was in it
    await asyncio.to_thread(broker.start)
    gone = [key for key, (partition, offset) in scene.load.acknowledged.items() if (partition, offset) in where(spoilt)]
    verdict = figures.take(await scene.verdict(deleted=gone), spoilt=len(gone), counted=counted)
    assert verdict.problems == ()
    assert found == 1
    assert counted == len(gone) == len(spoilt)


def where(offsets: range) -> set[tuple[int, int]]:
    """These places in the first partition."""
    return {(0, offset) for offset in offsets}
