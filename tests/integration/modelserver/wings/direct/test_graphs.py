"""Graphs of the direct engine, on devices that are late and without CUDA, around a small model of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

from modelserver.engines.engine import EngineFacts, IdArray, Launch, Matrix, Spans, Step
from modelserver.errors import DeviceLost
from modelserver.wings.direct.graphs import engine as graphs
from modelserver.wings.direct.graphs.device import Tensors
from modelserver.wings.direct.graphs.engine import GraphedEngine, with_graphs
from modelserver.wings.direct.graphs.graph import Graph
from modelserver.wings.direct.graphs.layout import shapes
from tests.integration.modelserver.wings.direct.graph_devices import Immediate, Late
from tests.support.fake_step_engine import facts_of

pytestmark = pytest.mark.vllm

SIZE, WORDS = 8, 500
FACTS = replace(facts_of(step_tokens=1024, step_queries=340, max_input_tokens=256), vocabulary_size=WORDS)
TABLE = torch.from_numpy(np.random.default_rng(1).normal(size=(WORDS, SIZE)).astype(np.float32))


@dataclass
class Toy:
    """A model whose attention leaves rows that no query covers as they were, NaN, which then reach every row."""

    facts: EngineFacts = FACTS
    captures: bool = True
    attended: int = 0
    recoveries: int = 0
    closed: list[str] = field(default_factory=list[str])
    change: Callable[[int, torch.Tensor], torch.Tensor] = lambda _tokens, out: out

    def attend(self, inputs: Tensors, longest: int) -> Tensors:
        self.attended += 1
        assert int(inputs.lengths.max()) <= longest
        return inputs

    def compute(self, inputs: Tensors, attention: Tensors) -> torch.Tensor:
        hidden = TABLE[inputs.token_ids.long()] * (1 + inputs.positions.float() + 3 * inputs.types.float())[:, None]
        states = torch.full_like(hidden, torch.nan)
        for begin, end in zip(attention.bounds.tolist(), attention.bounds[1:].tolist(), strict=False):
            states[begin:end] = hidden[begin:end] + hidden[begin:end].mean(0)
        states = states + 0 * states.sum()
        sums = torch.zeros(inputs.lengths.numel(), SIZE).index_add_(0, inputs.segments.long(), states)
        return self.change(inputs.token_ids.numel(), sums + TABLE[inputs.token_ids.long()[inputs.first.long()]])

    def finished(self, matrix: Matrix) -> Matrix:
        return matrix

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> Step:
        del spans
        return Eagerly(token_ids, lengths, second_segments)

    def recover(self) -> None:
        self.recoveries += 1

    def close(self) -> None:
        self.closed.append("weights")


@dataclass(frozen=True)
class Eagerly:
    token_ids: IdArray
    lengths: IdArray
    second_segments: IdArray | None

    def execute(self) -> Matrix:
        rows = []
        for number, query in enumerate(np.split(self.token_ids, np.cumsum(self.lengths)[:-1])):
            place = np.arange(query.size)
            begin = query.size if self.second_segments is None else self.second_segments[number]
            hidden = TABLE.numpy()[query] * (1 + place + 3 * (place >= begin)).astype(np.float32)[:, None]
            rows.append((hidden + hidden.mean(0)).sum(0) + TABLE.numpy()[query[0]])
        return np.array(rows, np.float32)


def batch(rng: np.random.Generator, *lengths: int) -> tuple[IdArray, IdArray]:
    sizes = np.array(lengths, np.int32)
    return rng.integers(0, WORDS, int(sizes.sum()), np.int32), sizes


def graphed(toy: Toy, device: Immediate | None = None) -> tuple[GraphedEngine, list[Launch]]:
    counted: list[Launch] = []
    return with_graphs(toy, device or Immediate(), counted.append), counted


def agrees(engine: Any, *given: Any) -> bool:
    expected = Toy().prepare(*given).execute()
    return bool(np.abs(engine.prepare(*given).execute() - expected).max() <= 1e-4 * np.abs(expected).max())


def test_full_half_full_and_single_token_steps_are_as_eager_in_any_order() -> None:
    engine, counted = graphed(Toy())
    rng = np.random.default_rng(3)
    for lengths in ([10] * 100, [1], [64], [7, 1, 30], [16] * 64, [1] * 16, [128, 128], [1]):
        assert agrees(engine, *batch(rng, *lengths)), lengths
    assert counted == [Launch.GRAPH] * 8


def test_the_sizes_of_its_graphs_are_facts_of_the_engine() -> None:
    engine, _ = graphed(Toy())
    assert engine.facts.capture_sizes == (64, 96, 128, 192, 256, 384, 512, 768, 1024)


def test_token_types_reach_the_graph() -> None:
    engine, counted = graphed(Toy())
    ids, lengths = batch(np.random.default_rng(4), 9, 20, 1)
    assert agrees(engine, ids, lengths, np.array([3, 20, 0], np.int32))
    assert agrees(engine, ids, lengths)
    assert counted == [Launch.GRAPH] * 2


@pytest.mark.parametrize(
    "lengths",
    [[129], [1] * 60, [3] * 300, [100] * 11],
    ids=["a longer query", "slots in a graph of four times the step only", "more queries", "more tokens"],
)
def test_steps_that_no_graph_takes_are_eager_and_counted(lengths: list[int]) -> None:
    engine, counted = graphed(Toy())
    assert agrees(engine, *batch(np.random.default_rng(5), *lengths))
    assert counted == [Launch.EAGER]


def test_spans_are_eager() -> None:
    engine, counted = graphed(Toy())
    ids, lengths = batch(np.random.default_rng(6), 9)
    engine.prepare(ids, lengths, None, Spans(np.array([0], np.int32), np.empty((0, 2), np.int32))).execute()
    assert counted == [Launch.EAGER]


def test_a_model_that_leaves_prompts_out_has_no_graphs() -> None:
    engine, counted = graphed(Toy(captures=False))
    assert engine.facts.capture_sizes == ()
    assert agrees(engine, *batch(np.random.default_rng(6), 9))
    assert counted == [Launch.EAGER]


def test_a_graph_of_more_than_twice_the_step_is_not_used() -> None:
    toy = Toy()
    toy.change = lambda tokens, out: out * (torch.nan if 64 < tokens < 512 else 1)
    engine, counted = graphed(toy)
    assert engine.facts.capture_sizes == (64, 512, 768, 1024)
    assert agrees(engine, *batch(np.random.default_rng(7), 100, 100))
    assert agrees(engine, *batch(np.random.default_rng(7), 100, 100, 56))
    assert counted == [Launch.EAGER, Launch.GRAPH]


def test_a_step_is_one_copy_in_one_replay_and_one_copy_out() -> None:
    device = Immediate()
    engine, _ = graphed(Toy(), device)
    before = device.copies, device.replays
    engine.prepare(*batch(np.random.default_rng(8), 9, 5)).execute()
    assert (device.copies - before[0], device.replays - before[1]) == (2, 1)


def failing(tokens: int, out: torch.Tensor) -> torch.Tensor:
    if tokens == 128:
        raise RuntimeError("operation not permitted when stream is capturing")
    return out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (failing, "a graph cannot be captured"),
        (lambda tokens, out: out * (torch.nan if tokens == 128 else 1), "a graph computes other vectors"),
        (lambda tokens, out: out + (tokens == 128) * torch.eye(*out.shape), "a graph computes other vectors"),
    ],
    ids=["fails", "answers NaN", "differs"],
)
def test_a_graph_that_fails_or_differs_is_left_out_with_one_warning(
    change: Callable[[int, torch.Tensor], torch.Tensor], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy()
    toy.change = change
    with caplog.at_level(logging.WARNING, logger=graphs.__name__):
        engine, counted = graphed(toy)
    assert [(record.message, record.__dict__["tokens"]) for record in caplog.records] == [(said, 128)]
    assert 128 not in engine.facts.capture_sizes
    assert {64, 192, 1024} <= set(engine.facts.capture_sizes)
    assert agrees(engine, *batch(np.random.default_rng(9), 100, 28)), "the next graph computes it"
    assert counted == [Launch.GRAPH]


def test_without_any_graph_the_engine_serves_eagerly() -> None:
    toy = Toy()
    toy.change = lambda _tokens, out: out * torch.nan
    engine, counted = graphed(toy)
    assert engine.facts.capture_sizes == ()
    assert agrees(engine, *batch(np.random.default_rng(9), 3))
    assert counted == [Launch.EAGER]


class AcceleratorError(RuntimeError):
    """As torch raises for an error after which CUDA refuses every call."""


def test_a_gpu_that_is_lost_in_a_capture_ends_the_start() -> None:
    def lost(_tokens: int, _out: torch.Tensor) -> torch.Tensor:
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")

    toy = Toy()
    toy.change = lost
    with pytest.raises(DeviceLost):
        graphed(toy)


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_are_staged_beside_a_late_device_keep_their_inputs(seed: int) -> None:
    """While one step runs, others are staged, of which the last runs next, as the queue does."""
    rng = np.random.default_rng(seed)
    device = Late(seed)
    engine, _ = graphed(Toy(), device)
    staged: list[tuple[Any, Step]] = []

    def stage() -> None:
        if rng.random() < 0.5:
            given = batch(rng, *rng.integers(1, 20, rng.integers(1, 5)))
            staged.append((given, engine.prepare(*given)))
            if rng.random() < 0.5:
                del staged[:-1]

    for _ in range(30):
        device.meanwhile = lambda: None
        stage()
        if not staged:
            continue
        given, step = staged.pop(int(rng.integers(len(staged))))
        device.meanwhile = stage
        found = step.execute()
        expected = Toy().prepare(*given).execute()
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_two_steps_are_staged_and_a_third_takes_the_place_of_the_last() -> None:
    device = Late()
    engine, _ = graphed(Toy(), device)
    rng = np.random.default_rng(11)
    given = [batch(rng, 5, number + 1) for number in range(3)]
    steps = [engine.prepare(*each) for each in given]
    for place in (1, 0, 2):
        expected = Toy().prepare(*given[place]).execute()
        assert np.abs(steps[place].execute() - expected).max() <= 1e-4 * np.abs(expected).max()


class Once(Late):
    """Its next replay raises after the copy was queued."""

    fails = False

    def capture(self, body: Any, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
        replay, out = super().capture(body, inputs, longest)

        def failing_once() -> None:
            if self.fails:
                self.fails = False
                raise RuntimeError("CUDA out of memory")
            replay()

        return failing_once, out


def test_after_a_failed_replay_the_engine_recovers_and_computes_on() -> None:
    device, toy = Once(), Toy()
    engine, _ = graphed(toy, device)
    rng = np.random.default_rng(12)
    device.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.prepare(*batch(rng, 9, 2)).execute()
    engine.recover()
    assert toy.recoveries == 1
    for _ in range(4):
        assert agrees(engine, *batch(rng, 4, 8))


def test_the_metadata_is_asked_for_once_a_graph() -> None:
    class AsCuda(Immediate):
        """What refers to the buffers is made at the capture."""

        def capture(self, body: Any, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
            attention = body.attend(inputs, longest)
            out = body.compute(inputs, attention).clone()
            return lambda: self.later(lambda: out.copy_(body.compute(inputs, attention))), out

    toy = Toy()
    engine, counted = graphed(toy, AsCuda())
    for lengths in ([9, 2], [5], [60, 60]):
        assert agrees(engine, *batch(np.random.default_rng(13), *lengths))
    assert counted == [Launch.GRAPH] * 3
    assert toy.attended == len(engine.facts.capture_sizes)


def test_closing_drops_the_graphs_before_the_weights() -> None:
    class Watched(Toy):
        def close(self) -> None:
            self.closed += [f"{sum(each() is not None for each in outputs)} outputs", "weights"]

    class Watching(Immediate):
        def capture(self, body: Any, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
            out = body.compute(inputs, body.attend(inputs, longest))
            outputs.append(ref(out))
            return lambda: None, out

    outputs, toy = list[Any](), Watched()
    engine = GraphedEngine(
        toy, [Graph(shape, toy, Watching()) for shape in shapes(128, 128)], Immediate(), lambda _: None
    )
    assert toy.closed == []
    engine.close()
    assert len(outputs) == 3
    assert toy.closed == ["0 outputs", "weights"]
