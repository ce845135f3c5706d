from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Tokenizers
from tokenizers.models import WordLevel

from aggregator.model_server import ModelServer
from aggregator.registry import KINDS
from aggregator.replicas.pool import ModelServers, ProbePolicy
from aggregator.replicas.targets import Target, fixed
from aggregator.tokenizers.cache import TokenizerCache, tokenizer_fingerprint
from aggregator.tokenizers.tokenizer import TOKENIZER_FILE, Tokenizer
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import batch
from tests.support.fake_model_server import FILES, FakeModelServer, embed_response
from tests.support.until import until

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

    engines: dict[ModelServer, Tokenizer] = field(default_factory=dict[ModelServer, Tokenizer])
    story: list[str] = field(default_factory=list[str])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, engine: ModelServer, tokenizer: Tokenizer) -> None:
        assert engine not in self.engines
        self.engines[engine] = tokenizer
        self.story.append(f"+{engine.description.instance_id}")
        self.changed.set()

    def leave(self, engine: ModelServer) -> None:
        del self.engines[engine]
        self.story.append(f"-{engine.description.instance_id}")
        self.changed.set()

    async def until(self, holds: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    @property
    def only(self) -> ModelServer:
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
    return TokenizerCache(tmp_path)


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
    return ModelServers(fixed(targets), cache, KINDS, policy=policy)


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


WORDS = Tokenizers(WordLevel({"a": 0}, unk_token="[UNK]"))
ODD_FILES = {
    "a vocabulary without the unknown word": {TOKENIZER_FILE: WORDS.to_str().encode()},
}


@pytest.mark.parametrize("odd", ODD_FILES.values(), ids=ODD_FILES.keys())
async def test_a_server_with_an_unusable_tokenizer_is_left_out_and_ends_nothing(
    servers: list[FakeModelServer],
    members: Members,
    cache: TokenizerCache,
    caplog: pytest.LogCaptureFixture,
    odd: dict[str, bytes],
) -> None:
    files = {**FILES, **odd}
    sick = FakeModelServer(tokenizer_fingerprint=tokenizer_fingerprint(files), instance_id="sick")
    sick.files = files
    servers += [await sick.start(), await FakeModelServer(instance_id="well").start()]
    pool = static(cache, *servers)
    async with running(pool, members):
        await until_logged("cannot be used", caplog)
        await members.until(lambda: bool(members.engines))
        assert members.story == ["+well"]
        assert [target.address for target, why in pool.troubles() if why] == [sick.address]


async def test_a_killed_server_leaves_at_once_and_its_successor_joins_anew(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer(instance_id="first").start())
    asking_would_take_long = replace(POLICY, check_every_s=60.0)
    pool = static(cache, *servers, policy=asking_would_take_long)
    async with running(pool, members):
        await members.until(lambda: bool(members.engines))
        assert pool.troubles() == [(Target(servers[0].address, "fake"), "")]
        await servers[0].kill()
        await members.until(lambda: not members.engines)
        ((_, why),) = pool.troubles()
        assert why
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


async def test_a_suspect_is_withdrawn_at_once_and_returns_when_it_answers_well(
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


def not_a_number(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
    said = embed_response(request)
    said.embeddings = np.full(8, np.nan, "<f4").tobytes()
    return said


async def test_a_server_whose_probe_has_an_error_does_not_join(
    servers: list[FakeModelServer], members: Members, cache: TokenizerCache
) -> None:
    servers.append(await FakeModelServer().start())
    servers[0].answer = not_a_number
    pool = static(cache, *servers)
    async with running(pool, members):
        await until(lambda: any("fails on a probe: INTERNAL: the answer is not" in why for _, why in pool.troubles()))
        assert not members.engines
        servers[0].answer = embed_response
        await members.until(lambda: bool(members.engines))


@pytest.mark.parametrize(
    "odd",
    [
        ({"dimensions": 16}, "dimensions 16, not 8"),
        ({"query_prompt": "query: "}, "query_prompt 'query: ', not ''"),
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


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    policy = ProbePolicy(first_delay_s=0.1, longest_delay_s=1.0, jitter=lambda: 0.5)
    assert [policy.delay_s(tries) for tries in (0, 1, 2, 3, 4, 1000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert ProbePolicy(first_delay_s=1.0, jitter=lambda: 0.0).delay_s(0) == 0.5
    assert ProbePolicy(first_delay_s=1.0, jitter=lambda: 0.999).delay_s(0) == pytest.approx(1.499)
