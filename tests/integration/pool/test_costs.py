"""Whose the engines' time is: real processes, several aggregators, one engine that takes the time it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.generation.v1 import generation_pb2, generation_pb2_grpc
from tests.integration.pool.conftest import Pool
from tests.support.processes import NewServer
from tests.support.scrape import metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHARES = {"one": 1, "two": 2, "seven": 7}
SECONDS, TOKENS = "tokenbatch_engine_seconds_total", "tokenbatch_tokens_total"
CALLS = 40
AT_ONCE = 40
TIMEOUT_S = 60.0
PER_TOKEN_S = 0.0003
"""Of texts: nearly all of a step, so that it matters little how full the first and last ones are."""


class Stand:
    """Two aggregators in front of one server."""

    def __init__(self, server: ModelServer, pool: Pool) -> None:
        self.server = server
        self.addresses, self.monitoring = [], []
        for _ in range(2):
            aggregator = pool(server.address)
            self.addresses.append(aggregator.address)
            self.monitoring.append(aggregator.process.metrics_address)

    def counted(self, name: str, **labels: str) -> float:
        return sum(metrics(each).value(name, **labels) for each in self.monitoring)

    def by_tenant(self, name: str, **labels: str) -> dict[str, float]:
        """The part of each tenant in what all of them had: the probes of the aggregators are not among them."""
        parts = {tenant: self.counted(name, tenant=tenant, **labels) for tenant in SHARES}
        return {tenant: part / sum(parts.values()) for tenant, part in parts.items()}

    @property
    def busy_s(self) -> float:
        """The engine's: steps of texts, and those of embeddings alone."""
        found = metrics(self.server.metrics_address)
        both = found.value("tokenbatch_engine_duration_seconds_sum", composition="mixed")
        embedding = found.value("tokenbatch_engine_duration_seconds_sum") - both
        return found.value("tokenbatch_generate_engine_duration_seconds_sum") + embedding

    @property
    def generated(self) -> float:
        """The tokens of texts, prompts included, that the engine computed."""
        return metrics(self.server.metrics_address).value("tokenbatch_generate_engine_tokens_total")

    async def embed(self, calls: Sequence[tuple[str, str]]) -> None:
        """Calls of tenants to both aggregators, a few at once so that all batches hold some of each."""
        requests = [pb.EmbedRequest(tenant=tenant, inputs=[pb.Input(text=text)]) for tenant, text in calls]

        async def send(stub: Any) -> None:
            for first in range(0, len(requests), AT_ONCE):
                await asyncio.gather(*(stub.Embed(each, timeout=TIMEOUT_S) for each in requests[first:][:AT_ONCE]))

        async with self._channels() as channels:
            await asyncio.gather(*(send(pb_grpc.EmbeddingsStub(channel)) for channel in channels))

    async def generate(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
        async def read(stub: Any, tenant: str, sampling: dict[str, Any]) -> None:
            request = generation_pb2.GenerateRequest(
                tenant=tenant, prompt=f"what is said of {tenant}", sampling=generation_pb2.Sampling(**sampling)
            )
            async for _ in stub.Generate(request, timeout=TIMEOUT_S):
                pass

        async with self._channels() as channels:
            stubs = [generation_pb2_grpc.GenerationStub(channel) for channel in channels]
            await asyncio.gather(*(read(stub, *call) for stub in stubs for call in calls))

    @asynccontextmanager
    async def _channels(self) -> AsyncGenerator[list[grpc.aio.Channel]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(grpc.aio.insecure_channel(each)) for each in self.addresses]


def embeddings() -> list[tuple[str, str]]:
    """Calls whose tokens are as 1 : 2 : 7, each text another one, so mixed that all batches are."""
    calls = [
        (tenant, f"question {number} {place} of {tenant}")
        for number in range(CALLS)
        for tenant, share in SHARES.items()
        for place in range(share)
    ]
    random.Random(7).shuffle(calls)
    return calls


def texts() -> list[tuple[str, dict[str, Any]]]:
    """As many as run at once: those that waited for others would run in emptier steps, which cost more a token."""
    calls: list[tuple[str, dict[str, Any]]] = [
        (tenant, {"max_tokens": 30, "seed": 10 * seed + number})
        for seed in range(4)
        for tenant, share in SHARES.items()
        for number in range(share)
    ]
    random.Random(7).shuffle(calls)
    return calls


def assert_shares(found: dict[str, float]) -> None:
    assert found == {
        "one": pytest.approx(0.1, abs=0.02),
        "two": pytest.approx(0.2, abs=0.02),
        "seven": pytest.approx(0.7, abs=0.02),
    }


async def test_tenants_pay_for_their_tokens_in_the_steps_of_both_tasks(new_server: NewServer, pool: Pool) -> None:
    server = new_server(
        MODEL__TASK="both",
        MODEL__MAX_INPUT_TOKENS="512",
        SYNTHETIC__FIXED_S="0.001",
        SYNTHETIC__PER_TOKEN_S=str(PER_TOKEN_S),
    )
    server.start()
    stand = Stand(server, pool)
    await stand.generate(texts())
    assert_shares(stand.by_tenant(SECONDS, task="generate"))
    assert_shares(stand.by_tenant(TOKENS, task="generate"))
    of_texts = stand.counted("gen_ai_client_token_usage_sum")
    assert stand.counted(TOKENS, task="generate") == of_texts > 2 * 40 * 30
    assert stand.counted(SECONDS) == pytest.approx(stand.busy_s, rel=0.01)
    stops = [("one", {"max_tokens": 200, "stop": ["e"], "seed": seed}) for seed in range(20)]
    await asyncio.gather(stand.generate([*texts(), *stops]), stand.embed(embeddings()))
    unread_s = PER_TOKEN_S * (stand.generated - stand.counted(TOKENS, task="generate"))
    counted_s, busy_s = stand.counted(SECONDS), stand.busy_s
    assert 0.99 * busy_s - unread_s <= counted_s <= 1.01 * busy_s  # nobody reads what comes of a text after its stop
    assert_shares(stand.by_tenant(TOKENS, task="embed"))
    assert 0 < stand.counted(SECONDS, task="embed") < stand.counted(SECONDS)


@pytest.mark.parametrize("lie", ["nan_row", "error"])
async def test_time_that_gave_nobody_a_result_is_nobodys_and_the_sum_holds(
    new_server: NewServer, pool: Pool, tmp_path: Path, lie: str
) -> None:
    fault = tmp_path / "fault"
    server = new_server(
        SYNTHETIC__FIXED_S="0.05",
        SYNTHETIC__POISON_SHARE="0.3",
        SYNTHETIC__POISON_MODE=lie,
        SYNTHETIC__POISON_WHILE=str(fault),
    )
    server.start()
    stand = Stand(server, pool)
    await stand.embed(embeddings()[:100])
    fault.touch()
    failing = asyncio.create_task(stand.embed(embeddings()[100:300]))
    await asyncio.sleep(5.0)  # the fault itself
    fault.unlink()
    await failing
    await stand.embed(embeddings()[300:])
    assert stand.counted(SECONDS, tenant="nobody") > 0
    assert stand.counted(SECONDS) == pytest.approx(stand.busy_s, rel=0.02)
