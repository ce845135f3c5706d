"""Servers and aggregators fail while generations run: each text is, token by token, that of a run without faults.

Callers stream texts and producers ask for others through Kafka, while at random moments a model server is killed,
hangs, is stopped, is cut off, loses its connections or is replaced with all others, or an aggregator is killed.
FAULTS_TEXTS_S is how long the row with a real model lasts, FAULTS_SEED the seed of its faults.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from typing_extensions import override

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from loadtest.texts.smollm2 import NAME, smollm2
from protos.generation.v1 import generation_pb2 as pb
from tests.faults.load_of_two_tasks import CALL_S, Answer, Failed, Fault, Load
from tests.faults.relay import Relay
from tests.faults.rows import Figures
from tests.faults.test_model_server_faults import restarting
from tests.faults.test_network_faults import port_of
from tests.integration.aggregator.wings.generation.test_generation import Texts, generate
from tests.integration.aggregator.wings.generation.test_generation import generated as new_tokens
from tests.support.kafka_client import Topics, open_kafka_client
from tests.support.processes import Running, aggregators, synthetic

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SOAK_S = float(os.environ.get("FAULTS_TEXTS_S", "1200"))
_ONE_CORE = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
_DRAINS = {"CONSTANTS": '{"modelserver.settings:GrpcSettings.drain_timeout_s": 0.5}'}
_KNOWN = {
    **_DRAINS,
    "MODEL__TASK": "generate",
    "MODEL__MAX_INPUT_TOKENS": "512",
    "SYNTHETIC__FIXED_S": "0.01",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
}


@dataclass
class GenerationLoad(Load):
    """Model servers, each behind a relay, and two aggregators between them and Kafka and callers.

    A server hangs, or is cut off, for at most `longest_s`.
    """

    relays: Sequence[Relay] = ()
    running: Sequence[Running] = ()
    longest_s: float = 0.0
    killed: Counter[int] = field(default_factory=Counter[int])
    down: set[int] = field(default_factory=set[int])

    @override
    async def call(self, chance: random.Random) -> None:
        """Stream texts until it is over; one whose aggregator is killed is asked for again at the other."""
        while not self.over:
            number = chance.choice(self.numbers)
            self.asked += 1
            answer = None
            while answer is None:
                answer = await self._stream(chance, number)
            self.judge(f"call {number}", "generate", number, answer)

    async def _stream(self, chance: random.Random, number: int) -> Answer | None:
        """One text from an aggregator to which a Service would lead; None where that was killed."""
        at = chance.choice([each for each in range(len(self.running)) if each not in self.down])
        kills = self.killed[at]
        async with grpc.aio.insecure_channel(self.running[at].process.address) as channel:
            try:
                return await self.ask(channel, "generate", number, wait_for_ready=True)
            except Failed as error:
                if self.killed[at] == kills:
                    self.errors.append(str(error))
                return None

    def round(self, light: int) -> list[tuple[str, Fault]]:
        """Each fault, and each `light` one, which mends quickly, so often."""
        heavy = [("killed", self._kill), ("stopped", self._stop), ("all replaced", self._replace)]
        light_ones = [
            ("hung", self._hang),
            ("cut off", self._cut),
            ("connections reset", self._reset),
            ("aggregator killed", self._kill_aggregator),
        ]
        return [*heavy, *light_ones * light]

    async def _busiest(self) -> int:
        """The place of the server that generates most."""
        before = [new_tokens(server) for server in self.servers]
        await asyncio.sleep(0.3)
        found = [new_tokens(server) - tokens for server, tokens in zip(self.servers, before, strict=True)]
        return found.index(max(found))

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


async def under_faults(
    kafka: KafkaBroker,
    folder: Path,
    servers: Sequence[ModelServer],
    model: str,
    figures: Figures,
    *,
    texts: int,
    tokens: int,
    longest_s: float,
    every_s: float,
    seconds: float = 0.0,
    light: int = 1,
) -> None:
    """Texts of these servers under faults, through a stack that ends then."""
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
        load = GenerationLoad(
            running[0].process.address,
            {"generate": await resources.enter_async_context(open_kafka_client(kafka.bootstrap, topics))},
            numbers=range(texts),
            tokens=tokens,
            servers=servers,
            metrics_addresses=[each.process.metrics_address for each in running],
            relays=relays,
            running=running,
            longest_s=longest_s,
        )
        await load.learn()
        async with load.flowing(callers=6, every_s=every_s):
            await load.break_things(load.round(light), seconds)
    load.take(figures)
    assert load.resumed


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
    await under_faults(
        kafka, tmp_path, known, known[0].model, figures, texts=12, tokens=200, longest_s=3.0, every_s=0.5
    )


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
    assert 3 + 3 <= came.last.attempt <= 4 + 2 + 3  # log2(13) + 2, and three as proof
    assert (again.code, "not tried again" in again.details) == (grpc.StatusCode.INTERNAL, True)


def differs(came: Texts, expected: Texts) -> bool:
    return (came.code, came.text, came.token_ids) != (grpc.StatusCode.OK, expected.text, expected.token_ids)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModelServer]]:
    """SmolLM2 in float32 on two engines, each on one core."""
    told = {**_DRAINS, "ENGINE__DTYPE": "float32", "MODEL__MAX_INPUT_TOKENS": "512"}
    for name, value in _ONE_CORE.items():
        monkeypatch.setenv(name, value)
    path = str(smollm2())
    servers = [ModelServer(tmp_path / f"server-{number}.log", model_path=path, settings=told) for number in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait(600.0)
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.mark.vllm
@pytest.mark.row("generated texts of SmolLM2 through the same faults")
@pytest.mark.timeout(SOAK_S + 1800)
async def test_texts_of_a_model_go_on_as_if_nothing_had_happened(
    kafka: KafkaBroker, tmp_path: Path, real: list[ModelServer], figures: Figures
) -> None:
    await under_faults(
        *(kafka, tmp_path, real, NAME, figures),
        texts=16,
        tokens=40,
        longest_s=12.0,
        every_s=4.0,
        seconds=SOAK_S,
        light=4,
    )
