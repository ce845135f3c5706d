"""`python -m aggregator redrive` on a real Kafka: nothing is lost or goes round for ever, a second run goes on."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aggregator.__main__ import main
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Header = tuple[str, bytes]


class Desk:
    """A topic of queries and its dead letters, by names of their own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.queries = f"redrive-{secrets.token_hex(4)}"
        self.letters = f"{self.queries}-dlt"

    async def create(self, **configs: str) -> None:
        """Make both topics; `configs` are of the queries' topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        topics = [NewTopic(self.queries, 2, 1, topic_configs=configs), NewTopic(self.letters, 2, 1)]
        await admin.create_topics(topics)
        await admin.close()

    async def write(self, topic: str, records: Sequence[tuple[bytes, bytes, list[Header]]]) -> None:
        """Write records of key, value and headers."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            written = [await producer.send(topic, key=key, value=value, headers=more) for key, value, more in records]
            await asyncio.gather(*written)

    async def fail(self, count: int, code: str = "INTERNAL", *more: Header, start: int = 0) -> None:
        """Write so many dead letters; the n-th has n as its key."""
        headers = [("content-type", b"text/plain"), ("dlt-original-topic", self.queries.encode())]
        headers += [("dlt-error-code", code.encode()), *more]
        numbers = range(start, start + count)
        await self.write(self.letters, [(b"%d" % n, b"value %d" % n, headers) for n in numbers])

    async def read(self, topic: str = "") -> list[Any]:
        """Every record of a topic, the queries' if it is not named."""
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest") as consumer:
            tps = [TopicPartition(topic or self.queries, number) for number in range(2)]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            found: list[Any] = []
            while len(found) < sum(ends.values()):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found.extend(records)
            return found

    async def keys(self) -> Counter[int]:
        """How often each key stands in the queries' topic."""
        return Counter(int(record.key) for record in await self.read())

    def command(self, *options: str) -> list[str]:
        """The command's arguments."""
        return ["redrive", "--bootstrap", self.bootstrap, "--from", self.letters, *options]

    async def redrive(self, *options: str) -> int:
        """Run it; its exit code."""
        return await asyncio.to_thread(main, self.command(*options))


@pytest.fixture
async def desk(kafka: KafkaBroker) -> Desk:
    desk = Desk(kafka.bootstrap)
    await desk.create()
    return desk


def figures(file: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(file.read_text())
    return found


async def test_letters_go_back_as_they_were_sent_and_only_once(desk: Desk, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    await desk.fail(1200)
    assert await desk.redrive("--json", str(summary)) == 0
    assert figures(summary)["put_back"] == figures(summary)["topics"][desk.queries] == 1200
    records = await desk.read()
    assert {(record.key, record.value) for record in records} == {(b"%d" % n, b"value %d" % n) for n in range(1200)}
    assert {record.headers for record in records} == {(("content-type", b"text/plain"), ("dlt-redrives", b"1"))}
    await desk.fail(3, start=1200)
    assert await desk.redrive("--json", str(summary)) == 0
    assert (figures(summary)["read"], figures(summary)["put_back"]) == (3, 3)
    assert await desk.keys() == Counter(range(1203))


async def test_what_one_run_is_not_asked_for_another_one_finds(desk: Desk, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    await desk.fail(20, "DATA_LOSS")
    await desk.fail(20, "INTERNAL", start=20)
    await desk.fail(20, "DATA_LOSS", start=40)
    assert await desk.redrive("--code", "INTERNAL", "--json", str(summary)) == 0
    assert await desk.keys() == Counter(range(20, 40))
    assert figures(summary)["not_wanted"] == 40
    assert await desk.redrive("--key", "7", "--dry-run", "--json", str(summary)) == 0
    assert (figures(summary)["put_back"], figures(summary)["codes"]) == (1, {"DATA_LOSS": 1})
    assert sum((await desk.keys()).values()) == 20
    assert await desk.redrive("--count", "30") == 0
    assert sum((await desk.keys()).values()) == 50
    assert await desk.redrive("--json", str(summary)) == 0
    assert await desk.keys() == Counter(range(60))
    assert figures(summary)["done_before"] + figures(summary)["put_back"] <= 60


@pytest.mark.parametrize("options", [("--code", "data_loss"), ("--key", "7"), ("--code", "data-loss", "--dry-run")])
async def test_a_choice_that_fits_no_letter_is_said(
    desk: Desk, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    await desk.fail(3)
    assert await desk.redrive(*options) == 1
    assert "none of the 3 dead letters is as requested" in capsys.readouterr().err
    assert not await desk.read()
    assert await desk.redrive("--code", "internal") == 0
    assert await desk.redrive("--code", "internal") == 0  # put back before


async def test_two_runs_at_once_put_nothing_back_twice(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    await desk.fail(300)
    first = asyncio.create_task(desk.redrive("--rate", "20"))
    while not await desk.read():
        assert not first.done()
    assert await desk.redrive() == 2
    assert f"group redrive.{desk.letters} has a member" in capsys.readouterr().err
    assert await desk.redrive("--dry-run") == 0
    assert await first == 0
    assert await desk.keys() == Counter(range(300))


async def test_two_runs_from_one_moment_put_nothing_back_twice(desk: Desk) -> None:
    await desk.fail(300)
    codes = await asyncio.gather(desk.redrive(), desk.redrive())
    assert set(codes) <= {0, 2}
    assert await desk.redrive() == 0
    assert await desk.keys() == Counter(range(300))


async def test_a_time_tells_letters_apart(desk: Desk) -> None:
    await desk.fail(5)
    assert await desk.redrive("--until", "1h") == 1
    assert not await desk.read()
    assert await desk.redrive("--since", "1h") == 0
    assert await desk.keys() == Counter(range(5))


async def test_what_cannot_go_back_stays_and_is_told(kafka: KafkaBroker, tmp_path: Path) -> None:
    desk = Desk(kafka.bootstrap)
    await desk.create(**{"max.message.bytes": "2000"})
    summary = tmp_path / "summary.json"
    await desk.fail(2, "INTERNAL", ("dlt-value-omitted", b"true"))
    await desk.fail(3, "INTERNAL", ("dlt-redrives", b"3"), start=2)
    await desk.write(desk.letters, [(b"x", b"no letter", [])])
    absent = [("dlt-original-topic", b"absent")]
    large = [("dlt-original-topic", desk.queries.encode())]
    await desk.write(desk.letters, [(b"y", b"", absent), (b"z", secrets.token_bytes(5000), large)])
    await desk.fail(4, start=10)
    stuck = {
        "value omitted": 2,
        "no original topic": 1,
        "topic absent is missing, or not visible to this client": 1,
        "MessageSizeTooLargeError": 1,
    }
    assert await desk.redrive("--json", str(summary)) == 1
    assert figures(summary)["stuck"] == {**stuck, "put back too often": 3}
    assert await desk.keys() == Counter(range(10, 14))
    assert await desk.redrive("--max-redrives", "4", "--json", str(summary)) == 1
    assert figures(summary)["stuck"] == stuck
    assert await desk.keys() == Counter([2, 3, 4, *range(10, 14)])


async def test_a_run_that_is_killed_loses_nothing_and_the_next_one_goes_on(desk: Desk) -> None:
    await desk.fail(600)
    command = ("-m", "aggregator", *desk.command("--rate", "100"))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=subprocess.DEVNULL)
    try:
        while sum((await desk.keys()).values()) < 150:
            assert process.returncode is None
    finally:
        process.kill()
        await process.wait()
    assert await desk.redrive() == 0
    found = await desk.keys()
    assert set(found) == set(range(600))
    assert sum(found.values()) <= 700  # what was under way when it was killed: a second's


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bootstrap", "localhost:1"], "Kafka at localhost:1 failed"),
        (["--from", "absent-dlt"], "topic absent-dlt is missing, or not visible to this client"),
        (["--from", "a-dlt", "--to", "a-dlt"], "the dead letters would only go round in their own topic"),
    ],
)
async def test_what_cannot_be_done_is_said(
    kafka: KafkaBroker, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert await Desk(kafka.bootstrap).redrive(*options) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


async def test_a_letter_that_fails_for_ever_comes_to_rest(desk: Desk, tmp_path: Path) -> None:
    settings = {
        "KAFKA__TOPICS": f'[{{"name": "{desk.queries}"}}]',
        "KAFKA__REPLY_TOPIC": f"{desk.queries}-replies",
        "KAFKA__GROUP_ID": desk.queries,
        "KAFKA__CREATE_TOPICS": "true",
    }
    engine = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false"}
    with (
        ModelServer(tmp_path / "m.log", settings=engine) as server,
        Aggregator(
            tmp_path / "a.log",
            kafka=desk.bootstrap,
            model=DEFAULT_MODEL_NAME,
            servers=[server.address],
            settings=settings,
        ),
    ):
        await desk.write(desk.queries, [(b"1", b"\xff", [])])
        last = 0
        for expected in ({}, {"dlt-redrives": b"1"}, {"dlt-redrives": b"2"}, {"dlt-redrives": b"3"}):
            while not (letters := [each for each in await desk.read(desk.letters) if _redrives(each) == expected]):  # noqa: ASYNC110 - a topic calls nobody
                await asyncio.sleep(0.1)
            assert len(letters) == 1
            last = await desk.redrive()
        assert last == 1
        assert len(await desk.read(desk.letters)) == 4


def _redrives(letter: Any) -> Mapping[str, bytes]:
    return {name: content for name, content in letter.headers if name == "dlt-redrives"}
