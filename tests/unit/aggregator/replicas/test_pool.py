from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from aggregator.admission.tokenizers.cache import TokenizerCache
from aggregator.admission.tokenizers.tokenizer import Tokenizer
from aggregator.errors import ModelServerLost
from aggregator.replicas.discovery import Discovery, Target
from aggregator.replicas.engine import Engine
from aggregator.replicas.pool import ModelServers, describe
from aggregator.replicas.watch import ProbePolicy
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.fakes.engines import batch
from tests.fakes.model_server import FakeModelServer, Refusal, embed_response

POLICY = ProbePolicy(
    call_timeout_s=30.0,
    tokenizer_timeout_s=30.0,
    check_every_s=0.1,
    first_delay_s=0.02,
    longest_delay_s=0.1,
    steady_s=0.5,
    close_grace_s=0.0,
    jitter=lambda: 0.5,
)


@dataclass
class Members:
    """Who is in the pool, and the order of comings and goings."""

    engines: dict[Engine, Tokenizer] = field(default_factory=dict[Engine, Tokenizer])
    story: list[str] = field(default_factory=list[str])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, engine: Engine, tokenizer: Tokenizer) -> None:
        assert engine not in self.engines
        self.engines[engine] = tokenizer
        self.story.append(f"+{engine.description.instance_id}")
        self.changed.set()

    def leave(self, engine: Engine) -> None:
        del self.engines[engine]
        self.story.append(f"-{engine.description.instance_id}")
        self.changed.set()

    async def until(self, holds: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def until_they_are(self, names: set[str]) -> None:
        await self.until(lambda: {engine.description.instance_id for engine in self.engines} == names)

    @property
    def only(self) -> Engine:
        (engine,) = self.engines
        return engine


@pytest.fixture
async def servers() -> AsyncIterator[list[FakeModelServer]]:
    servers: list[FakeModelServer] = []
    yield servers
    for server in servers:
        server.open.set()
        await server.kill()


@pytest.fixture
def members() -> Members:
    return Members()


@pytest.fixture
def cache(tmp_path: Path) -> TokenizerCache:
    return TokenizerCache(tmp_path, fast=False)


async def until_logged(words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wait for something to be said with these words in its reason."""
    async with asyncio.timeout(30):
        while not any(words in str(vars(record).get("reason")) for record in caplog.records):  # noqa: ASYNC110 - a log calls nobody
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(pool: ModelServers, members: Members) -> AsyncGenerator[None]:
    task = asyncio.create_task(pool.run(members))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def static(cache: TokenizerCache, *servers: FakeModelServer, policy: ProbePolicy = POLICY) -> ModelServers:
    targets = [Target(server.address, "fake") for server in servers]
    return ModelServers(Discovery(targets), cache, policy=policy)


async def test_every_server_that_answers_joins_with_its_tokenizer(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers += [await FakeModelServer(instance_id=name).start() for name in ("one", "two")]
    async with running(static(cache, *servers), members):
        await members.until(lambda: len(members.engines) == 2)
        tokenizers = list(members.engines.values())
        assert tokenizers[0] is tokenizers[1]
        counted = tokenizers[0].count(["hello world"])
        result = await next(iter(members.engines)).embed(batch(counted.ids.tolist()), timeout_s=30)
        assert result.matrix.shape == (1, 8)
        assert np.isfinite(result.matrix).all()
    assert not members.engines


async def test_a_server_is_probed_with_a_query_before_it_joins(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
    (probe,) = servers[0].batches
    assert (probe.batch_id, len(probe.lengths)) == ("probe", 4)


async def test_a_server_that_still_loads_joins_when_it_serves(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start(serving=False))
    async with running(static(cache, *servers), members):
        await asyncio.sleep(0.1)
        assert not members.engines
        await servers[0].serve(serving=True)
        await members.until(lambda: bool(members.engines))


async def test_a_server_that_is_not_there_yet_joins_when_it_comes(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    await servers[0].kill()
    async with running(static(cache, *servers), members):
        await asyncio.sleep(0.1)
        assert not members.engines
        await servers[0].start()
        await members.until(lambda: bool(members.engines))


async def test_a_killed_server_leaves_at_once_and_its_successor_joins_as_another(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer(instance_id="first").start())
    asking_would_take_long = replace(POLICY, check_every_s=60.0)
    async with running(static(cache, *servers, policy=asking_would_take_long), members):
        await members.until(lambda: bool(members.engines))
        await servers[0].kill()
        await members.until(lambda: not members.engines)
        servers[0].said.instance_id = "second"
        await servers[0].start()
        await members.until(lambda: bool(members.engines))
    assert members.story == ["+first", "-first", "+second", "-second"]


async def test_a_server_that_says_it_stops_leaves_at_once(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
        await servers[0].serve(serving=False)
        await members.until(lambda: not members.engines)
        await servers[0].serve(serving=True)
        await members.until(lambda: bool(members.engines))


async def test_a_server_that_hangs_leaves_and_returns_when_it_wakes(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    impatient = replace(POLICY, call_timeout_s=0.3)
    async with running(static(cache, *servers, policy=impatient), members):
        await members.until(lambda: bool(members.engines))
        servers[0].open.clear()
        await members.until(lambda: not members.engines)
        servers[0].open.set()
        await members.until(lambda: bool(members.engines))


async def test_a_suspect_is_withdrawn_in_the_same_breath_and_returns_when_it_answers_well(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    pool = static(cache, *servers)
    async with running(pool, members):
        await members.until(lambda: bool(members.engines))
        servers[0].garbage = b"\xff"
        suspect = members.only
        pool.suspect(suspect)
        assert not members.engines
        pool.suspect(suspect)
        await asyncio.sleep(0.2)
        assert not members.engines
        servers[0].garbage = None
        await members.until(lambda: bool(members.engines))
        assert members.only is not suspect


async def test_a_busy_server_is_alive(servers: list[FakeModelServer], members: Members, cache: TokenizerCache) -> None:
    def refuse(_: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)

    servers.append(await FakeModelServer().start())
    servers[0].answer = refuse
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))


async def test_a_server_of_another_model_is_left_out_and_named_once(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache, caplog: pytest.LogCaptureFixture
) -> None:
    servers += [await FakeModelServer(instance_id="right").start(), await FakeModelServer(model="other").start()]
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
        await until_logged("it serves the model other, not fake", caplog)
        await asyncio.sleep(0.3)
        assert len(members.engines) == 1
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [vars(record)["reason"] for record in errors] == ["it serves the model other, not fake"]
    assert vars(errors[0])["address"] == servers[1].address


@pytest.mark.parametrize(
    "odd",
    [
        ({"dimensions": 16}, "dimensions 16, not 8"),
        ({"query_prompt": "query: "}, "query_prompt 'query: ', not ''"),
        ({"max_input_tokens": 128}, "max_input_tokens 128, not 256"),
    ],
)
async def test_a_server_unlike_its_siblings_of_the_same_revision_is_left_out(
    servers: list[FakeModelServer],
    members: Members,
    cache: TokenizerCache,
    caplog: pytest.LogCaptureFixture,
    odd: tuple[dict[str, object], str],
) -> None:
    changes, words = odd
    servers.append(await FakeModelServer(instance_id="right").start())
    servers.append(await FakeModelServer(instance_id="odd", **changes).start(serving=False))
    servers[1].answer = lambda request: embed_response(request, servers[1].said.dimensions)
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
        await servers[1].serve(serving=True)
        await until_logged(words, caplog)
        await asyncio.sleep(0.3)
        assert members.story == ["+right"]


async def test_another_revision_joins_beside_the_first(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers += [await FakeModelServer().start(), await FakeModelServer(model_revision="r2", dimensions=16).start()]
    servers[1].answer = lambda request: embed_response(request, 16)
    async with running(static(cache, *servers), members):
        await members.until(lambda: len(members.engines) == 2)


async def test_a_tokenizer_that_is_not_what_it_says_keeps_its_server_out(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache, caplog: pytest.LogCaptureFixture
) -> None:
    servers.append(await FakeModelServer(tokenizer_fingerprint="0" * 64).start())
    async with running(static(cache, *servers), members):
        await until_logged("fingerprint is", caplog)
        await asyncio.sleep(0.3)
    assert not members.story


async def test_a_server_that_answers_garbage_never_joins_and_harms_nobody(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers += [await FakeModelServer(instance_id="right").start(), await FakeModelServer(instance_id="bad").start()]
    servers[1].garbage = b"\xff"
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
        async with asyncio.timeout(30):
            while len(servers[1].batches) < 3:  # noqa: ASYNC110 - a list calls nobody
                await asyncio.sleep(0.01)
        assert members.story == ["+right"]


async def test_the_first_server_to_return_decides_what_the_revision_is(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    async with running(static(cache, *servers), members):
        await members.until(lambda: bool(members.engines))
        await servers[0].kill()
        await members.until(lambda: not members.engines)
        servers[0].said.query_prompt = "query: "
        await servers[0].start()
        await members.until(lambda: bool(members.engines))
        assert members.only.description.query_prompt == "query: "


class Changing:
    """Addresses that change when the test says so."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[frozenset[Target]] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[frozenset[Target]]:
        while True:
            yield await self.queue.get()


async def test_addresses_may_come_and_go(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers += [await FakeModelServer(instance_id=name).start() for name in ("one", "two")]
    one, two = (Target(server.address, "fake") for server in servers)
    changing = Changing()
    async with running(ModelServers(changing, cache, policy=POLICY), members):
        for targets, expected in (({one}, {"one"}), ({one, two}, {"one", "two"}), ({two}, {"two"}), (set(), set())):
            changing.queue.put_nowait(frozenset(targets))
            await members.until_they_are(expected)


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    policy = ProbePolicy(first_delay_s=0.1, longest_delay_s=1.0, jitter=lambda: 0.5)
    assert [policy.delay_s(tries) for tries in (0, 1, 2, 3, 4, 1000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert ProbePolicy(first_delay_s=1.0, jitter=lambda: 0.0).delay_s(0) == 0.5
    assert ProbePolicy(first_delay_s=1.0, jitter=lambda: 0.999).delay_s(0) == pytest.approx(1.499)


async def test_describe_tells_what_a_server_is_or_that_nobody_is_there(servers: list[FakeModelServer]) -> None:
    servers.append(await FakeModelServer().start())
    assert (await describe(servers[0].address, 30.0)).model == "fake"
    await servers[0].kill()
    with pytest.raises(ModelServerLost, match="UNAVAILABLE"):
        await describe(servers[0].address, 30.0)
