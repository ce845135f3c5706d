"""SmolLM2 on two real engines, one of which is killed in the middle of texts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator

import grpc
import pytest

from loadtest.stack.service import ModelServer
from loadtest.texts.smollm2 import NAME
from protos.generation.v1 import generation_pb2 as pb
from tests.integration.aggregator.test_generation import Texts, generate, generated
from tests.support.processes import StartAggregator
from tests.support.two_smollm2 import two_smollm2

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TEXTS = 8
QUESTIONS = ("rivers", "stars", "日本 🗼", "trains")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ModelServer]]:
    with two_smollm2(tmp_path_factory.mktemp("smollm2")) as started:
        yield started


async def test_every_text_is_that_of_a_run_without_the_fault(
    servers: list[ModelServer], start_aggregator: StartAggregator
) -> None:
    models = json.dumps([{"name": NAME, "servers": [server.address for server in servers]}])
    address = start_aggregator(settings={"MODELS": models}).process.address

    async def texts() -> list[Texts]:
        return await asyncio.gather(
            *(
                generate(
                    address,
                    prompt=None,
                    messages=pb.Messages(
                        messages=[pb.Message(role="user", content=f"Tell me of {QUESTIONS[number % 4]}, fact {number}")]
                    ),
                    sampling=pb.Sampling(max_tokens=40, temperature=0.8 * (number % 2), seed=number, ignore_eos=True),
                    timeout_s=300.0,
                )
                for number in range(TEXTS)
            )
        )

    expected = await texts()
    before = [generated(server) for server in servers]
    going = asyncio.create_task(texts())
    for _ in range(2000):
        if any(generated(server) - seen > 3 * TEXTS for server, seen in zip(servers, before, strict=True)):
            break
        await asyncio.sleep(0.05)
    busiest = max(zip(servers, before, strict=True), key=lambda pair: generated(pair[0]) - pair[1])[0]
    os.kill(busiest.pid, signal.SIGKILL)
    came = await going
    assert [each.code for each in came] == [grpc.StatusCode.OK] * TEXTS
    assert [each.token_ids for each in came] == [each.token_ids for each in expected]
    assert [each.text for each in came] == [each.text for each in expected]
    assert any(each.last.attempt for each in came)
