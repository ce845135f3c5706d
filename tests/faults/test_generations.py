"""Servers and aggregators fail while generations run: each text is, token by token, that of a run without faults.

Callers stream texts and producers ask for others through Kafka, while at random moments a model server is killed,
hangs, is stopped, is cut off, loses its connections or is replaced with all others, or an aggregator is killed.
FAULTS_TEXTS_S is how long the row with a real model lasts, FAULTS_SEED the seed of its faults.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from loadtest.texts.smollm2 import NAME
from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1 import generation_pb2_grpc as pb_grpc
from tests.faults.relay import Relay
from tests.faults.rows import Figures
from tests.faults.test_model_server_faults import restarting
from tests.faults.test_network_faults import port_of
from tests.faults.topic_logs import read_topics
from tests.integration.aggregator.test_generation import Texts, generate, generated
from tests.support.kafka_client import KafkaClient, Sent, Topics, open_kafka_client
from tests.support.processes import Running, aggregators, synthetic
from tests.support.scrape import metrics
from tests.support.two_smollm2 import two_smollm2

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SOAK_S = float(os.environ.get("FAULTS_TEXTS_S", "1200"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))
SUBJECTS = ("rivers", "stars", "日本 🗼", "trains")
CALL_S = 300.0
_DRAINS = {"GRPC__DRAIN_TIMEOUT_S": "0.5"}
_KNOWN = {
    **_DRAINS,
    "MODEL__TASK": "generate",
    "MODEL__MAX_INPUT_TOKENS": "512",
    "SYNTHETIC__FIXED_S": "0.01",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
}


@dataclass(frozen=True, slots=True)
class Whole:
    """A text as it must be."""

    text: str
    token_ids: tuple[int, ...]


@dataclass
class Seen:
    """What came of the load; `problems` are what must never be."""

    asked: int = 0
    answered: int = 0
    resumed: int = 0
    asked_again: int = 0
    duplicates: int = 0
    unanswered: int = 0
    wrong: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])


@dataclass
class GenerationStack:
    """Model servers, each behind a relay, and two aggregators between them and Kafka and callers.

    A server hangs, or is cut off, for at most `longest_s`.
    """

    servers: Sequence[ModelServer]
    relays: Sequence[Relay]
    running: Sequence[Running]
    client: KafkaClient
    texts: int
    tokens: int
    longest_s: float
    seen: Seen = field(default_factory=Seen)
    wholes: dict[int, Whole] = field(default_factory=dict[int, Whole])
    killed: Counter[int] = field(default_factory=Counter[int])
    down: set[int] = field(default_factory=set[int])
    over: bool = False

    def request(self, number: int, request_id: str) -> pb.GenerateRequest:
        """The question of that number: greedy, or drawn by a seed."""
        sampling = pb.Sampling(max_tokens=self.tokens, temperature=0.8 * (number % 2), seed=number, ignore_eos=True)
        prompt = f"Tell me of {SUBJECTS[number % len(SUBJECTS)]}, fact {number}."
        return pb.GenerateRequest(request_id=request_id, prompt=prompt, sampling=sampling, include_token_ids=True)

    async def learn(self) -> None:
        """What every text is while nothing fails."""
        found = await asyncio.gather(*(self._stream(0, number) for number in range(self.texts)))
        assert all(whole is not None for whole in found)
        self.wholes = {number: whole for number, whole in enumerate(found) if whole is not None}

    async def call(self, chance: random.Random) -> None:
        """Stream texts until it is over; one whose aggregator is killed is asked for again at the other."""
        while not self.over:
            number = chance.randrange(self.texts)
            self.seen.asked += 1
            while (whole := await self._stream(chance.choice(self._ready()), number)) is None:
                self.seen.asked_again += 1
            self._judge(f"call {number}", number, whole)

    async def produce(self, every_s: float, sent: dict[str, int]) -> None:
        """Ask for a text through Kafka every so often, until it is over."""
        for place in itertools.count():
            if self.over:
                return
            number, request_id = place % self.texts, f"record-{place}"
            await self.client.produce(Sent(self.request(number, request_id).SerializeToString()))
            sent[request_id] = number
            await asyncio.sleep(every_s)

    async def collect(self, sent: dict[str, int]) -> None:
        """Hold every reply against what it must be, once all are there."""
        await self.client.until(lambda: len(self._replied()) >= len(sent), timeout_s=CALL_S)
        reply_ids: dict[str, set[str]] = {request_id: set() for request_id in sent}
        async for record in read_topics(self.client.bootstrap, self.running[0].topics.replies):
            told = pb.GenerateResponse.FromString(record.value or b"")
            self.seen.duplicates += bool(reply_ids[told.request_id])
            reply_ids[told.request_id].add(told.reply_id)
            if told.status.code:
                self.seen.errors.append(f"{told.request_id}: {told.status.message}")
            else:
                self._judge(told.request_id, sent[told.request_id], Whole(told.text, tuple(told.token_ids)))
        self.seen.asked += len(sent)
        self.seen.unanswered = sum(not ids for ids in reply_ids.values())
        self.seen.wrong += [f"{name} has {len(ids)} reply_ids" for name, ids in reply_ids.items() if len(ids) > 1]

    def _ready(self) -> list[int]:
        """The aggregators to which a Service would lead."""
        return [at for at in range(len(self.running)) if at not in self.down]

    def _replied(self) -> set[str]:
        return {pb.GenerateResponse.FromString(each.value or b"").request_id for each in self.client.replies}

    def _judge(self, what: str, number: int, whole: Whole) -> None:
        self.seen.answered += 1
        if whole != self.wholes[number]:
            self.seen.wrong.append(what)

    async def _stream(self, at: int, number: int) -> Whole | None:
        """One text from the aggregator at that place; None where that was killed."""
        process, kills = self.running[at].process, self.killed[at]
        text, token_ids, attempt = "", list[int](), 0
        async with grpc.aio.insecure_channel(process.address) as channel:
            try:
                stub = pb_grpc.GenerationStub(channel)
                async for response in stub.Generate(self.request(number, ""), timeout=CALL_S, wait_for_ready=True):
                    assert response.index == len(token_ids), "a token is missing, or came twice"
                    text += response.text
                    token_ids += response.token_ids
                    attempt = response.attempt
            except grpc.aio.AioRpcError as error:
                if self.killed[at] == kills:
                    self.seen.errors.append(f"{error.code().name}: {error.details()}")
                return None
        self.seen.resumed += attempt > 0
        return Whole(text, tuple(token_ids))

    async def break_things(self, chance: random.Random, until_s: float, light: int) -> None:
        """One fault after another, each mended before the next; `light` ones, which mend quickly, so often a round."""
        faults: Sequence[tuple[str, Callable[[random.Random], Awaitable[None]], int]] = (
            ("killed", self._kill, 1),
            ("stopped", self._stop, 1),
            ("all replaced", self._replace, 1),
            ("hung", self._hang, light),
            ("cut off", self._cut, light),
            ("connections reset", self._reset, light),
            ("aggregator killed", self._kill_aggregator, light),
        )
        round_ = [(name, fault) for name, fault, times in faults for _ in range(times)]
        while time.monotonic() < until_s:
            for name, fault in chance.sample(round_, len(round_)):
                await fault(chance)
                self.seen.faults[name] += 1
                await asyncio.to_thread(self._until_all_in_use)
                await asyncio.sleep(chance.uniform(0.2, 1.5))

    def _until_all_in_use(self) -> None:
        """Until every aggregator has every server again."""
        deadline_s = time.monotonic() + CALL_S
        for running in self.running:
            while metrics(running.process.metrics_address).value("embed_replica_state") < len(self.servers):
                assert time.monotonic() < deadline_s, f"a server is not used {CALL_S:g} s after its fault was mended"
                time.sleep(0.1)

    async def _busiest(self) -> int:
        """The place of the server that generates most."""
        before = [generated(server) for server in self.servers]
        await asyncio.sleep(0.3)
        new_tokens = [generated(server) - tokens for server, tokens in zip(self.servers, before, strict=True)]
        return new_tokens.index(max(new_tokens))

    async def _kill(self, chance: random.Random) -> None:
        del chance
        victim = self.servers[await self._busiest()]
        victim.kill()
        await asyncio.to_thread(victim.start, CALL_S)

    async def _hang(self, chance: random.Random) -> None:
        victim = self.servers[await self._busiest()]
        victim.pause()
        await asyncio.sleep(chance.uniform(0.5, self.longest_s))  # the fault itself
        victim.resume()

    async def _stop(self, chance: random.Random) -> None:
        del chance
        victim = self.servers[await self._busiest()]
        await asyncio.to_thread(victim.stop)
        await asyncio.to_thread(victim.start, CALL_S)

    async def _cut(self, chance: random.Random) -> None:
        relay = self.relays[await self._busiest()]
        relay.cut()
        await asyncio.sleep(chance.uniform(0.5, self.longest_s))  # the fault itself
        relay.mend()

    async def _reset(self, chance: random.Random) -> None:
        del chance
        self.relays[await self._busiest()].reset()

    async def _replace(self, chance: random.Random) -> None:
        for victim in chance.sample(self.servers, len(self.servers)):
            await asyncio.to_thread(victim.stop)
            await asyncio.to_thread(victim.start, CALL_S)

    async def _kill_aggregator(self, chance: random.Random) -> None:
        at = chance.randrange(len(self.running))
        self.killed[at] += 1
        self.down.add(at)
        self.running[at].process.kill()
        await asyncio.to_thread(self.running[at].process.start)
        self.down.remove(at)


@asynccontextmanager
async def opened(
    kafka: KafkaBroker,
    folder: Path,
    servers: Sequence[ModelServer],
    model: str,
    *,
    texts: int,
    tokens: int,
    longest_s: float,
) -> AsyncGenerator[GenerationStack]:
    """A stack whose servers have started; all of it ends with the block."""
    async with AsyncExitStack() as resources:
        relays = [await resources.enter_async_context(Relay(port_of(server.address))) for server in servers]
        start = resources.enter_context(aggregators(kafka, folder, f"texts-{model}"))
        topics = Topics(f"texts-{model}.requests", f"texts-{model}.replies")
        topic = {"name": topics.requests, "task": "generate", "reply_topic": topics.replies}
        settings = {
            "MODELS": json.dumps([{"name": model, "servers": [relay.address for relay in relays]}]),
            "KAFKA__TOPICS": json.dumps([topic]),
            "KAFKA__CLIENT__SESSION_TIMEOUT_S": "6",
        }
        running = [
            await asyncio.to_thread(start, topics=topics, group=topics.requests, settings=settings) for _ in range(2)
        ]
        client = await resources.enter_async_context(open_kafka_client(kafka.bootstrap, topics))
        yield GenerationStack(servers, relays, running, client, texts, tokens, longest_s)


async def under_faults(
    stack: GenerationStack, *, callers: int, every_s: float, seconds: float, light: int, figures: Figures
) -> None:
    """The load, the faults, and what must be true at the end."""
    await stack.learn()
    chance, sent, seen = random.Random(SEED), dict[str, int](), stack.seen
    async with asyncio.TaskGroup() as load:
        for number in range(callers):
            load.create_task(stack.call(random.Random(number)))
        load.create_task(stack.produce(every_s, sent))
        await stack.break_things(chance, time.monotonic() + seconds, light)
        stack.over = True
    await stack.collect(sent)
    figures.more |= {"faults": seen.faults.total(), "by_fault": dict(seen.faults), "resumed": seen.resumed}
    figures.counts = {
        "sent": seen.asked,
        "answered": seen.answered - seen.duplicates,
        "lost": seen.unanswered,
        "wrong": len(seen.wrong),
        "duplicates": seen.duplicates,
    }
    assert (seen.wrong, seen.errors, seen.unanswered) == ([], [], 0)
    assert seen.resumed


@pytest.fixture
def known(tmp_path: Path) -> Iterator[list[ModelServer]]:
    """Two that compute nothing: each token follows from the seed and all tokens before it."""
    with ExitStack() as resources:
        yield [resources.enter_context(synthetic(tmp_path / f"server-{number}.log", **_KNOWN)) for number in range(2)]


@pytest.mark.short
@pytest.mark.row(
    "generated texts whose model servers die, hang, are cut off and are replaced, and whose aggregators die"
)
@pytest.mark.timeout(600)
async def test_texts_go_on_as_if_nothing_had_happened(
    kafka: KafkaBroker, tmp_path: Path, known: list[ModelServer], figures: Figures
) -> None:
    async with opened(kafka, tmp_path, known, known[0].model, texts=12, tokens=200, longest_s=3.0) as stack:
        await under_faults(stack, callers=6, every_s=0.5, seconds=1.0, light=1, figures=figures)


@pytest.mark.row("a text that ends the process of its server, at its 40th token, with every text beside it")
@pytest.mark.timeout(580)
async def test_a_text_that_ends_its_servers_is_given_up_alone(
    kafka: KafkaBroker, tmp_path: Path, figures: Figures
) -> None:
    def ask(address: str, number: int) -> Coroutine[Any, Any, Texts]:
        sampling = pb.Sampling(max_tokens=120, seed=number, ignore_eos=True)
        return generate(address, timeout_s=CALL_S, prompt=f"tell me of {number}", sampling=sampling)

    with ExitStack() as resources:

        def server(name: str, **settings: str) -> ModelServer:
            return resources.enter_context(synthetic(tmp_path / f"{name}.log", **_KNOWN, **settings))

        start = resources.enter_context(aggregators(kafka, tmp_path, "fatal"))
        address = start(server("sound")).process.address
        fatal, *expected = await asyncio.gather(*(ask(address, number) for number in range(13)))
        harmless = {token_id for each in expected for token_id in each.token_ids}
        poison = next(token_id for token_id in fatal.token_ids[40:] if token_id not in harmless)
        ends = {"SYNTHETIC__POISON_TOKEN_ID": str(poison), "SYNTHETIC__POISON_MODE": "exit"}
        servers = [server(name, **ends) for name in "ab"]
        address = start(*servers).process.address
        async with restarting(servers):
            came, *others = await asyncio.gather(*(ask(address, number) for number in range(13)))
            again = await ask(address, 0)
    wrong = [number for number, pair in enumerate(zip(others, expected, strict=True)) if differs(*pair)]
    figures.counts = {"sent": 14, "answered": 14, "lost": 0, "wrong": len(wrong), "duplicates": 0}
    figures.more = {"servers ended": came.last.attempt}
    assert wrong == []
    assert came.code is grpc.StatusCode.INTERNAL
    assert came.token_ids == fatal.token_ids[: len(came.token_ids)]
    assert came.last.attempt <= 6
    assert (again.code, "made the engine fail before" in again.details) == (grpc.StatusCode.INTERNAL, True)


def differs(came: Texts, expected: Texts) -> bool:
    """Whether a text did not come, or is another."""
    return (came.code, came.text, came.token_ids) != (grpc.StatusCode.OK, expected.text, expected.token_ids)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[list[ModelServer]]:
    """SmolLM2 on two engines."""
    with two_smollm2(tmp_path, **_DRAINS) as servers:
        yield servers


@pytest.mark.vllm
@pytest.mark.row("generated texts of SmolLM2 through the same faults")
@pytest.mark.timeout(SOAK_S + 1800)
async def test_texts_of_a_model_go_on_as_if_nothing_had_happened(
    kafka: KafkaBroker, tmp_path: Path, real: list[ModelServer], figures: Figures
) -> None:
    async with opened(kafka, tmp_path, real, NAME, texts=16, tokens=40, longest_s=12.0) as stack:
        await under_faults(stack, callers=6, every_s=4.0, seconds=SOAK_S, light=4, figures=figures)
