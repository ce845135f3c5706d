"""The policy floor, in virtual time, on a scheduler that orders sequences as vLLM's does."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from modelserver.wings.both.embedding_batches import StepComposition
from modelserver.wings.generation.generator import EngineLoad

LEAST_ROOM = 16
"""Tokens that `StepTokens` leaves beside decoding sequences, however many decode."""
UNBOUNDED = 10**9


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, with new tokens to come; an embedding has none."""

    left: int
    new_tokens: int = 0
    began: bool = False

    @property
    def embeds(self) -> bool:
        return not self.new_tokens


@dataclass(slots=True)
class Step:
    """What one step computed."""

    left: int
    decoding: int
    decoded: int
    prompt_tokens: int
    embedding_tokens: int
    load: EngineLoad
    queued: list[int]
    finished: int
    cut: int
    """Prompts and embeddings of which a part is computed; each part is rounded down."""


@dataclass(slots=True)
class Engine:
    """Running sequences in the order of their start, then embeddings that wait, then prompts."""

    running: list[Sequence] = field(default_factory=list[Sequence])
    waiting: list[Sequence] = field(default_factory=list[Sequence])
    queue: list[Sequence] = field(default_factory=list[Sequence])
    """Embeddings that have not entered the engine."""

    @property
    def load(self) -> EngineLoad:
        generations = [each for each in self.running if not each.embeds]
        return EngineLoad(
            decoding=sum(not each.left for each in generations),
            begun=[each.left for each in generations if each.left],
            waiting_tokens=sum(each.left for each in self.waiting if not each.embeds),
            embeddings=[each.left for each in (*self.running, *self.waiting) if each.embeds],
        )

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self.queue)

    def step(self, room: int, most_tokens: int = UNBOUNDED) -> Step:
        """One step with `room` tokens beside its decoding sequences; each embedding's sender allows `most_tokens`."""
        load = self.load
        queued = [each.left for each in self.queue]
        budget = load.decoding + room
        composition = StepComposition(budget, load, seats=256)
        while self.queue and composition.admits(self.queue[0].left, most_tokens):
            entering = self.queue.pop(0)
            composition.enter(entering.left, most_tokens)
            self.waiting.append(entering)
        part = composition.prompt_part or UNBOUNDED
        cut = sum(each.left > part for each in (*self.running, *self.waiting))
        step = Step(room, load.decoding, 0, 0, 0, load, queued, 0, cut)
        self.waiting.sort(key=lambda each: not each.embeds)
        for sequence in (*self.running, *self.waiting):
            if not budget:
                break
            tokens = min(sequence.left or 1, part, budget)
            budget -= tokens
            if sequence not in self.running:
                self.waiting.remove(sequence)
                self.running.append(sequence)
            self._compute(sequence, tokens, step)
        self.running = [each for each in self.running if each.left or each.new_tokens]
        return step

    @staticmethod
    def _compute(sequence: Sequence, tokens: int, step: Step) -> None:
        if not sequence.left:
            step.decoded += 1
            sequence.new_tokens -= 1
            return
        embeds = sequence.embeds
        step.embedding_tokens += tokens * embeds
        step.prompt_tokens += tokens * (not embeds)
        sequence.left -= tokens
        if sequence.left:
            return
        step.finished += embeds
        if not embeds:
            sequence.new_tokens -= 1


prompts = st.builds(Sequence, st.integers(1, 900), st.integers(2, 12))
embeddings = st.builds(Sequence, st.one_of(st.integers(1, 30), st.integers(1, 900)))
arrivals = st.lists(st.lists(st.one_of(prompts, embeddings), max_size=6), max_size=25)
rooms = st.lists(st.one_of(st.integers(LEAST_ROOM, 120), st.integers(LEAST_ROOM, 2000)), min_size=1, max_size=10)


def played(arriving: list[list[Sequence]], room: list[int], most_tokens: int = UNBOUNDED) -> list[Step]:
    """Every step until all is done."""
    engine = Engine()
    steps: list[Step] = []
    place = 0
    while place < len(arriving) or engine.busy:
        for sequence in arriving[place] if place < len(arriving) else ():
            (engine.queue if sequence.embeds else engine.waiting).append(sequence)
        steps.append(engine.step(room[place % len(room)], most_tokens))
        place += 1
        assert place < 50_000, "it never ends"
    return steps


@given(arrivals, rooms)
@settings(max_examples=100)
def test_each_step_is_fair_to_decoding_prompts_and_embeddings_and_full(
    arriving: list[list[Sequence]], room: list[int]
) -> None:
    for step in played(arriving, room):
        # The time between tokens is that of a step, unless as many prompts and documents have begun as it has tokens.
        begun = len(step.load.begun)
        unused = step.left - step.prompt_tokens - step.embedding_tokens
        crowded = begun + len(step.load.embeddings) >= step.left
        assert crowded or (step.decoded == step.decoding and unused >= 0)
        # Prompts that wait keep a quarter of what decoding leaves.
        assert step.prompt_tokens >= min(step.load.prefill_tokens, step.left // 4) - step.cut
        # It completes an embedding, or computes as large a part of the first one as of any prompt.
        first = next(iter((*step.load.embeddings, *step.queued)), 0)
        assert step.finished or step.embedding_tokens >= min(first, step.left * 3 // 4 // (1 + begun)) - 1
        if unused > step.cut:  # then nothing that waits fits it
            assert step.prompt_tokens == step.load.prefill_tokens
            entered = step.embedding_tokens - sum(step.load.embeddings)
            assert entered >= 0  # every document was completed
            left_over = list(step.queued)
            while left_over and entered >= left_over[0]:
                entered -= left_over.pop(0)
            assert not left_over or left_over[0] > unused


short = st.builds(Sequence, st.integers(1, 30))
floods = st.lists(st.lists(st.one_of(prompts, short, short, short), max_size=40), max_size=12)


@given(floods, st.lists(st.integers(200, 2000), min_size=1, max_size=10))
@settings(max_examples=100)
def test_short_embeddings_come_before_all_prompts_but_a_quarter(
    arriving: list[list[Sequence]], room: list[int]
) -> None:
    """So one waits for as many steps as the embeddings before it fill three quarters of."""
    for step in played(arriving, room):
        wanted, longest = sum(step.queued), max(step.queued, default=0)
        assert step.load.embeddings == []  # each is computed in the step that it enters
        assert step.embedding_tokens >= min(wanted, step.left * 3 // 4 - longest)


def test_the_senders_smallest_budget_bounds_the_embeddings_of_a_step() -> None:
    engine = Engine(queue=[Sequence(40) for _ in range(10)])
    assert [engine.step(1000, most_tokens=100).embedding_tokens for _ in range(5)] == [80] * 5
