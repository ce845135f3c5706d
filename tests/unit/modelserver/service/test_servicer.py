"""What a batch on the wire says of itself decides with which others it shares a step; what is served is told whole."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from modelserver.model_files import ModelFiles
from modelserver.profile.measure import Profile, ProfileOwner, known
from modelserver.scheduler.merge import MergeLimits
from modelserver.scheduler.queued_batch import QueuedBatch
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.description import Description, describe
from modelserver.service.servicer import ModelServerServicer, Serving, tokenizer_chunks
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.fakes.step_engine import facts_of

FILES = ModelFiles(Path("m"), "r1", {}, "f1", True, "q: ", "d: ", False, (), 1000, 2, 20)
FACTS = facts_of()


class Context:
    """A call without metadata and without a deadline."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return ()

    def time_remaining(self) -> float | None:
        return None


def request(*lengths: int, **fields: Any) -> pb.EmbedBatchRequest:
    return pb.EmbedBatchRequest(
        model="m",
        model_revision="r1",
        token_ids=np.full(sum(lengths), 7, "<i4").tobytes(),
        lengths=np.array(lengths, "<i4").tobytes(),
        **fields,
    )


def profile(max_tokens: int = 1024) -> Profile:
    owner = ProfileOwner("m", "r1", "float32", "direct", "0.32", "cpu")
    return known(lambda tokens: max(0.010, 0.004 + 2e-5 * tokens), owner, max_tokens)


def description(measured: Profile | None = None) -> Description:
    return describe("m", FACTS, FILES, measured, "instance-1")


async def steps(*requests: pb.EmbedBatchRequest) -> list[tuple[QueuedBatch, ...]]:
    """The batches of each step, when these were sent one after the other while none ran."""
    queue = StepQueue(lambda: 0.0)
    queue.open(QueueBounds(MergeLimits(FACTS.step_token_capacity, FACTS.step_query_capacity), 10_000))
    serving = Serving(queue, description())
    servicer = ModelServerServicer(serving, tokenizer_chunks({}), lambda _, __: None)
    context = cast("grpc.aio.ServicerContext[Any, Any]", Context())
    calls = [asyncio.ensure_future(servicer.EmbedBatch(each, context)) for each in requests]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.close()
    taken: list[tuple[QueuedBatch, ...]] = []
    while (following := queue.take()) is not None:
        taken.append(following.selection.batches)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return taken


def sizes(taken: list[tuple[QueuedBatch, ...]]) -> list[list[int]]:
    return [[queued.token_count for queued in step] for step in taken]


async def test_batches_that_were_never_tried_share_a_step() -> None:
    assert sizes(await steps(request(5), request(6), request(7))) == [[5, 6, 7]]


@pytest.mark.parametrize("fields", [{"attempt": 1}, {"attempt": 3}, {"isolate": True}])
async def test_a_batch_that_was_tried_before_or_is_under_suspicion_is_never_merged(fields: dict[str, Any]) -> None:
    assert sizes(await steps(request(5), request(6, **fields), request(7))) == [[5, 7], [6]]
    assert sizes(await steps(request(6, **fields), request(5), request(7))) == [[6], [5, 7]]


async def test_the_smallest_budget_that_came_along_bounds_the_step_and_none_means_the_engines() -> None:
    assert sizes(await steps(request(10), request(10, max_step_tokens=25), request(10))) == [[10, 10], [10]]
    assert sizes(await steps(*(request(20) for _ in range(6)))) == [[20] * 5, [20]]


def test_the_published_profile_names_its_rule_and_how_far_was_measured() -> None:
    """Without them a saturation point means nothing to who reads it."""
    for max_tokens in (512, 1024):
        measured = profile(max_tokens)
        told = description(measured).message.profile
        assert (told.rule, told.max_tokens) == ("hinge", max_tokens)
        assert told.saturation_point == measured.curve.saturation_point
        assert (told.floor_s, told.fixed_s) == (measured.curve.floor_s, measured.curve.fixed_s)
        assert told.per_token_s == measured.curve.per_token_s
        assert [(point.step_tokens, point.step_duration_s) for point in told.points] == list(measured.points)
        assert told.measured_at == measured.measured_at


def test_a_model_is_described_by_its_files_and_its_engine() -> None:
    assert description().message == pb.DescribeResponse(
        model="m",
        model_revision="r1",
        tokenizer_fingerprint="f1",
        dimensions=2,
        max_input_tokens=20,
        step_token_capacity=100,
        step_query_capacity=50,
        normalizes=True,
        query_prompt="q: ",
        document_prompt="d: ",
        engine="synthetic",
        engine_version="1",
        dtype="float32",
        device="none",
        vocabulary_size=1000,
        instance_id="instance-1",
        task="embed",
    )


@pytest.mark.parametrize(
    ("is_matryoshka", "named", "told"), [(False, (), []), (True, (), [1, 2]), (True, (1,), [1]), (False, (1,), [1])]
)
def test_a_model_has_the_sizes_that_its_files_name_or_all_where_they_name_none(
    is_matryoshka: bool, named: tuple[int, ...], told: list[int]
) -> None:
    files = dataclasses.replace(FILES, is_matryoshka=is_matryoshka, matryoshka_dimensions=named)
    assert list(describe("m", FACTS, files, None, "i").message.matryoshka_dimensions) == told
