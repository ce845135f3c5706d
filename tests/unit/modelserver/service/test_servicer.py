"""What a batch on the wire says of itself decides with which others it shares a step; what is served is told whole."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelserver.engines.engine import Activation, Scoring, Task
from modelserver.model_files import ModelFiles
from modelserver.scheduler.queued_batch import Answer, Composition, MergeLimits, StepReport
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.description import Description, describe
from modelserver.service.servicer import Serving, _executed  # pyright: ignore[reportPrivateUsage]
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_step_engine import batch_of, facts_of

FILES = ModelFiles(Path("m"), "r1", {}, "f1", True, "q: ", "d: ", False, (), 1000, 2, 20)
FACTS = facts_of()


def description() -> Description:
    return describe("m", FACTS, FILES, None, "instance-1")


def test_a_classifier_is_told_with_its_labels_and_how_it_takes_pairs() -> None:
    scoring = Scoring(("contradiction", "neutral", "entailment"), Activation.SOFTMAX, token_types=True)
    facts = dataclasses.replace(FACTS, tasks=frozenset((Task.CLASSIFY,)), scoring=scoring, dimensions=3)
    told = describe("m", facts, FILES, None, "i").message
    assert (told.task, list(told.tasks), told.dimensions) == ("classify", ["classify"], 3)
    assert list(told.labels) == ["contradiction", "neutral", "entailment"]
    assert (told.pair_template.text, told.pair_template.token_types) == ("", True)


def test_a_model_that_ranks_is_told_with_its_template_and_without_labels() -> None:
    scoring = Scoring(("LABEL_0",), Activation.SIGMOID, template="{query} {document}")
    facts = dataclasses.replace(FACTS, tasks=frozenset((Task.RANK,)), scoring=scoring, dimensions=1)
    told = describe("m", facts, FILES, None, "i").message
    assert (told.task, list(told.tasks), told.dimensions, list(told.labels)) == ("rank", ["rank"], 1, [])
    assert (told.pair_template.text, told.pair_template.token_types) == ("{query} {document}", False)
    assert not describe("m", FACTS, FILES, None, "i").message.HasField("pair_template")


@pytest.mark.parametrize(
    ("is_matryoshka", "named", "told"), [(False, (), []), (True, (), [1, 2]), (True, (1,), [1]), (False, (1,), [1])]
)
def test_a_model_has_the_sizes_its_files_name_or_all_if_they_name_none(
    is_matryoshka: bool, named: tuple[int, ...], told: list[int]
) -> None:
    files = dataclasses.replace(FILES, is_matryoshka=is_matryoshka, matryoshka_dimensions=named)
    assert list(describe("m", FACTS, files, None, "i").message.matryoshka_dimensions) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"rectified": True}, False),
        ({"tasks": frozenset((Task.EMBED, Task.GENERATE))}, True),
        ({"tasks": frozenset((Task.GENERATE,))}, False),
        ({"scoring": Scoring(("",), Activation.SIGMOID)}, False),
        ({"scoring": Scoring(("a", "b"), Activation.IDENTITY)}, False),
        ({"scoring": Scoring(("a", "b"), Activation.SOFTMAX)}, True),
    ],
)
def test_a_server_says_whether_a_row_of_zeros_is_a_fault(changes: dict[str, Any], told: bool) -> None:
    facts = dataclasses.replace(FACTS, **changes)
    assert describe("m", facts, FILES, None, "i").message.never_zero is told


async def test_the_time_of_an_answer_that_comes_too_late_is_unclaimed() -> None:
    queue = StepQueue(lambda: 0.0)
    serving = Serving(queue)
    queue.open(QueueBounds(MergeLimits(100, 50), 1000))
    executing = asyncio.create_task(_executed(serving, batch_of([1]), pb.EmbedBatchRequest(), 5.0))
    await asyncio.sleep(0)
    taken = queue.take()
    assert taken is not None
    executing.cancel()
    await asyncio.sleep(0)
    (queued,) = taken.selection.batches
    report = StepReport(1, 1, 1, Composition.SINGLE, 3.0, 0.0)
    queued.deliver(Answer(np.ones((1, 2), np.float32), report, 0.0, 3.0))
    await asyncio.sleep(0)
    assert (serving.unclaimed.take(), serving.unclaimed.take()) == (3.0, 0.0)
