"""A batch costs the event loop at most a few milliseconds a turn, so that live calls beside it hardly wait."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import msgspec
import numpy as np
import pytest
from typing_extensions import override

from aggregator.slow_lane import SLOW_LANE
from aggregator.sources.calls.load import RateLimit
from aggregator.wings.batches.objects import (
    Head,
    Plan,
    Slice,
    batch_path,
    data_path,
    head_of,
    new_id,
    part_path,
    to_bytes,
)
from aggregator.wings.batches.upload import Upload
from k8s.pod.http.connections import LARGE_READ
from tests.support.fake_engine import FakeEngine
from tests.support.faked_pipeline import CURVE, DESCRIPTION, MODEL, FakedPipeline, new_engine
from tests.support.turns import TURN_S, least_s
from tests.support.virtual_time import START_S, AutojumpLoop
from tests.unit.aggregator.wings.batches.test_desk import FOLDER, Office
from tests.unit.aggregator.wings.batches.test_source import AWAY, Bench

pytestmark = pytest.mark.real_time("bounds the CPU time of each thread: of ten runs, the least")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
SERVED = replace(
    DESCRIPTION, dimensions=384, matryoshka_dimensions=frozenset(), curve=replace(CURVE, saturation_point=1000)
)


class TimedLoop(AutojumpLoop):
    """Notes the processor time of each turn, and of what runs on the slow lane meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.turns_s: list[float] = []

    def _run_once(self) -> None:
        self.timed(super()._run_once)  # type: ignore[misc]

    @override
    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if executor is not SLOW_LANE:
            return super().run_in_executor(executor, func, *args)
        return super().run_in_executor(executor, partial(self.timed, func, *args))

    def timed(self, work: Callable[[*Ts], T], *given: *Ts) -> T:
        """Of this thread."""
        began_s = time.thread_time()
        try:
            return work(*given)
        finally:
            self.turns_s.append(time.thread_time() - began_s)


@pytest.fixture(autouse=True)
def without_collections() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def at_work() -> AsyncGenerator[tuple[Bench, FakeEngine]]:
    """A source in a pipeline with one server, which takes 200 queries of this length a step."""
    engine = new_engine(SERVED, compute=lambda _, lengths, dimensions: np.ones((len(lengths), dimensions), np.float32))
    bench, piped = Bench(MODEL, SERVED.dimensions), FakedPipeline(engine, max_held_tokens=100_000)
    piped.pipeline.sources.append(bench.source)
    async with bench.started(), piped.started():
        yield bench, engine


def longest_s(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """The longest turn of some work."""
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        loop = runner.get_loop()
        runner.run(work())
        assert isinstance(loop, TimedLoop)
        return max(loop.turns_s)


async def begin() -> None:
    """The turn that ends now, and those before it, prepared the work: they do not count."""
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    loop.turns_s.clear()


def lines(count: int, text: str) -> bytes:
    """No two with the same text."""
    line = '{"custom_id":"l%d","url":"/v1/embeddings","body":{"input":"%s %d"}}\n'
    return "".join(line % (each, text, each) for each in range(count)).encode()


async def a_batch_is_computed() -> None:
    async with at_work() as (bench, engine):
        batch = await bench.batch(lines(1100, "a question"))
        await begin()
        await asyncio.sleep(60.0)
    heads = [head_of(bench.office.store.kept[part_path(FOLDER, batch.id, each)]) for each in range(5)]
    assert sum(each.completed for each in heads) == 1100
    assert max(each.query_count for each in engine.batches) == 200  # as many as the server takes


async def a_batch_fails_and_is_tried_again() -> None:
    bench = Bench(MODEL, SERVED.dimensions)
    async with bench.started():
        await bench.batch(1100)
        requests = [request for _ in range(4) for request in await bench.receive()]
        await begin()
        await bench.fail(requests, AWAY)
        again = 0
        while again < len(requests):
            again += len(await bench.source.receivers[1]())


async def a_batch_is_cancelled() -> None:
    async with at_work() as (bench, engine):
        engine.gate.clear()
        batch = await bench.batch(1100)
        await asyncio.sleep(1.0)
        await begin()
        await bench.office.desk.cancel(FOLDER, batch.id)
        await asyncio.sleep(3.0)
        await bench.source.delivered()
    assert head_of(bench.office.store.kept[part_path(FOLDER, batch.id, 0)]).cancelled == 256


async def a_file_is_validated() -> None:
    office = Office()
    file_id = await office.upload(lines(5000, "who wrote hamlet"))
    batch = await office.batch(file_id)
    await begin()
    assert await office.desk.plan(FOLDER, batch) is not None


async def a_file_of_empty_lines_is_validated() -> None:
    office = Office()
    batch = await office.batch(await office.upload(b"\n" * 500_000 + lines(1, "x")))
    await begin()
    assert await office.desk.plan(FOLDER, batch) is not None


async def a_batch_of_many_parts_is_shown() -> None:
    office, parts = Office(), 2000
    texts = b",".join([b'"a"'] * 200)
    data = b"".join(b'{"custom_id":"l%d","body":{"input":[%b]}}\n' % (each, texts) for each in range(parts))
    batch = await office.batch(await office.upload(data))
    await office.desk.begin(FOLDER, batch.id)
    for chunk in range(parts - 1):
        await office.store.create(part_path(FOLDER, batch.id, chunk), to_bytes(Head(1.0, 1, 0, 1, 1, 1)))
    await begin()
    for _ in range(2):  # the heads are read, and then they are kept
        assert len((await office.seen(batch)).heads) == parts - 1


async def a_batch_of_many_chunks_begins() -> None:
    office, chunks = Office(), 20_000
    batch = await office.batch(await office.upload(b"x"))
    plan = Plan(1.0, "m", tuple(Slice(each, 1, 1) for each in range(chunks)))
    await office.store.create(batch_path(FOLDER, batch.id, "plan"), msgspec.json.encode(plan))
    await begin()
    await office.desk.begin(FOLDER, batch.id)
    assert [each.chunk for each in office.written] == [-1, *range(chunks)]


async def many_files_are_listed() -> None:
    office, files = Office(), 4000
    for _ in range(files):
        office.now_s += 1.0
        await office.upload(b"x")
    await begin()
    assert len(await office.desk.files(FOLDER)) == files


class Sending:
    """The call of an upload."""

    started_s = START_S
    arrived_bytes = 0
    is_answered = is_gone = False

    @staticmethod
    def header(_: bytes) -> bytes:
        return b"multipart/form-data; boundary=edge"


async def a_file_is_uploaded() -> None:
    office, sending = Office(), Sending()
    file_id = new_id("file-", 1.0)
    upload = Upload(sending, office.desk, FOLDER, file_id, RateLimit(1e9))  # type: ignore[arg-type]
    data = lines(50_000, "x")
    head = b'--edge\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    whole = head + data + b"\r\n--edge--\r\n"
    await begin()
    for at in range(0, len(whole), LARGE_READ):
        upload.add(whole[at : at + LARGE_READ])
        await asyncio.sleep(max(0.001, upload.wait_s()))
    await upload.stored()
    assert office.store.kept[data_path(FOLDER, file_id)] == data


WORK: list[Callable[[], Coroutine[Any, Any, None]]] = [
    a_batch_is_computed,
    a_batch_fails_and_is_tried_again,
    a_batch_is_cancelled,
    a_file_is_validated,
    a_file_of_empty_lines_is_validated,
    a_batch_of_many_parts_is_shown,
    a_batch_of_many_chunks_begins,
    many_files_are_listed,
    a_file_is_uploaded,
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__.replace("_", " "))
def test_no_turn_is_longer_than_its_bound_when(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    assert least_s(partial(longest_s, work), enough_s=TURN_S) < TURN_S
