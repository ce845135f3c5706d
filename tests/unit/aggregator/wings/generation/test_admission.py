"""Prompts are queued up to their first tokens, with what their texts are likely to take."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code
from aggregator.request.request import Failure, Request, Stage
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.wings.generation.costs import GenerationCosts, Lengths
from aggregator.wings.generation.generation import Generation, generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.replica import GeneratingReplica
from protos.generation.v1.generation_pb2 import Message, Sampling
from tests.support.fake_source import GRPC, KAFKA, FakeSource
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, FakeCounting
from tests.support.queries import packed
from tests.unit.aggregator.admission.test_enqueue import NOW_S, Intake, request

COSTS = GenerationCosts(fixed_s=0.1, per_sequence_s=0.002, per_token_s=0.001, kv_tokens=1000, max_sequences=50)
NO_SUCH_ROLE = "the model's chat template does not take these messages: no such role"
TEMPLATE = (
    "{% if messages[0].role == 'odd' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ messages | map(attribute='content') | join(' ') }}"
)


class Chatting(FakeTokenizer):
    """With a chat template that knows no role `odd`; its detokenizer is the prompt."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    @override
    def detokenizer(self, prompt_ids: bytes) -> Any:
        return prompt_ids


def test_a_text_counts_with_what_its_new_tokens_are_likely_to_take() -> None:
    """(d + c / n) / p prompt tokens each: here 0.002 s + 0.1 s / 50 for what takes 0.001 s."""
    generating = COSTS
    words = FakeTokenizer()
    served = ModelRevision(replace(DESCRIPTION, details=generating), words, FakeCounting(words), DispatchPolicy()).usage
    assert isinstance(served, Lengths)
    assert served.expected_tokens(Generation(Sampling())) == 64 * 4
    assert served.expected_tokens(Generation(Sampling(max_tokens=10))) == 10 * 4
    ended = Generation(Sampling(), prompt_ids=bytes(4 * 100), token_ids=array("i", [1] * 200))
    for _ in range(500):
        served.finished(ended, 3.0)
    assert served.expected_tokens(Generation(Sampling())) == pytest.approx(200 * 4, rel=0.01)
    assert served.kv_token_s_per_token == pytest.approx((100 + 200 / 2) * 3.0 / (100 + 200 * 4), rel=0.01)
    embedding = ModelRevision(DESCRIPTION, words, FakeCounting(words), DispatchPolicy()).usage
    assert embedding.expected_tokens(None) == embedding.kv_token_s_per_token == 0


def prompted(*inputs: str, messages: Sequence[Message] = (), tenant: str = "") -> Request:
    """A call for a text of up to 10 new tokens."""
    asked = request(*inputs, tenant=tenant)
    asked.kind = GENERATION
    asked.details = Generation(Sampling(max_tokens=10), messages, first_token_by_s=NOW_S + 1.0)
    return asked


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        (prompted("3 4", tenant="t"), packed(1, 3, 4, 2)),
        (prompted("", messages=[Message(role="user", content="3 4")], tenant="t"), packed(3, 4)),
    ],
)
def test_a_prompt_is_queued_to_its_first_token_and_holds_its_likely_load(
    asked: Request, prompt: bytes, tmp_path: Path
) -> None:
    intake = Intake(details=COSTS)
    intake.model_revision.tokenizer = Chatting(tmp_path)
    assert intake.put(asked) == []
    generation = generation_of(asked)
    detokenizer: Any = generation._detokenizer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert (generation.model_revision, generation.prompt_ids, detokenizer) == ("r1", prompt, prompt)
    assert intake.admission.total == len(prompt) // 4 + 10 * 4
    assert [(item.token_ids, repr(item.token_count)) for item in intake.queue.items()] == [
        (prompt, str(len(prompt) // 4))
    ]
    assert [(query.deadline_s, query.tenant) for query in asked.queries] == [(NOW_S + 1.0, "t")]


@pytest.mark.parametrize(
    ("asked", "failure"),
    [
        (
            prompted("3 " * 30),
            Failure(
                Code.OUT_OF_RANGE,
                "32 tokens: test-model takes 32 tokens, those of the text included; send less",
                field="prompt",
            ),
        ),
        (
            prompted("", messages=[Message(role="user")]),
            Failure(Code.INVALID_ARGUMENT, "the prompt has no tokens", field="messages"),
        ),
        (
            prompted("", messages=[Message(role="odd")]),
            Failure(
                Code.INVALID_ARGUMENT,
                "the model's chat template does not take these messages: no such role",
                field="messages",
            ),
        ),
        (
            prompted("999999"),
            Failure(
                Code.INVALID_ARGUMENT, "a token id is not below 100000, the size of the vocabulary", field="prompt"
            ),
        ),
    ],
)
def test_a_prompt_that_says_nothing_or_leaves_no_room_for_text_is_refused(
    asked: Request, failure: Failure, tmp_path: Path
) -> None:
    intake = Intake(details=COSTS)
    intake.model_revision.tokenizer = Chatting(tmp_path)
    assert intake.put(asked) == [asked]
    assert asked.failure == failure


@pytest.mark.parametrize("role", ["user", "odd"])
def test_a_chat_of_many_messages_is_rendered_on_a_thread(role: str, tmp_path: Path) -> None:
    intake = Intake(details=COSTS)
    threads: list[str] = []

    class Named(Chatting):
        @override
        def __hash__(self) -> int:
            threads.append(threading.current_thread().name)
            return super().__hash__()

    intake.model_revision.tokenizer = Named(tmp_path)
    asked = prompted("", messages=[Message(role=role, content="3")] * 40)
    asked.details = replace(generation_of(asked), sampling=Sampling(max_tokens=1), first_token_by_s=inf)
    intake.put(asked)
    assert {name.partition("_")[0] for name in threads} == {"slow-lane"}
    if role == "odd":
        assert asked.failure == Failure(Code.INVALID_ARGUMENT, NO_SUCH_ROLE, field="messages")
    else:
        assert asked.failure is not None
        assert "40 tokens" in asked.failure.message


def test_a_text_likely_to_be_late_is_refused_and_through_kafka_waits(tmp_path: Path) -> None:
    """One place, whose text takes about 64 steps of 2 ms; three texts wait for it."""
    intake = Intake(details=COSTS)
    model_revision = intake.model_revision
    model_revision.tokenizer = Chatting(tmp_path)
    server = GeneratingReplica("a", DESCRIPTION.curve, 100, ReplicaPolicy(), kv_tokens=4096, max_sequences=1)
    model_revision.dispatcher.replicas["a"] = server
    server.began()
    server.sent("b", 10, NOW_S - 0.1)
    server.ended("b", NOW_S, StepReport(10, 0.003, 0, 0.0, 0.0))
    each_s = 1 / server.generations_per_s
    numbers = count(3)

    def text(in_s: float, source: FakeSource = GRPC) -> Request:
        asked = request(f"1 2 {next(numbers)}", source=source)
        asked.kind, asked.details = GENERATION, Generation(Sampling(), first_token_by_s=NOW_S + in_s)
        return asked

    assert intake.put(text(inf), text(2.5 * each_s), late := text(2.5 * each_s), text(3.5 * each_s)) == [late]
    assert (late.code, late.stage) == (Code.DEADLINE_EXCEEDED, Stage.RECEIVED)
    assert intake.put(text(0.1 * each_s, KAFKA)) == [], "it may yet come in time, and its topic waits with it"
