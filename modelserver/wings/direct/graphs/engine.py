"""The direct engine with graphs for the steps that one takes; it computes the others as before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from modelserver.engines.engine import CountLaunch, EngineFacts, IdArray, Launch, Matrix, Spans, Step
from modelserver.errors import DeviceLost, device_errors
from modelserver.wings.direct.agreement import TOLERANCE, apart
from modelserver.wings.direct.graphs.device import Body, Device
from modelserver.wings.direct.graphs.graph import Graph, StepInputs
from modelserver.wings.direct.graphs.layout import Shape, shapes

_log = logging.getLogger(__name__)

_FILLS = (1.0, 0.75, 0.5)
"""Shares of a graph's tokens in the batches that it is compared on."""
_MOST_OVER = 2
"""A step is computed eagerly rather than by a graph of more than so many times its tokens."""
_SEED = 20_261_128
_MIB = 2**20


class Eager(Body, Protocol):
    """The engine that computes what no graph takes, and whose forward pass the graphs hold."""

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def captures(self) -> bool:
        """Whether its forward pass is the same for all steps, so that a graph can hold it."""
        ...

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> Step: ...

    def finished(self, matrix: Matrix) -> Matrix:
        """Vectors, or scores of logits, of the rows that a forward pass computed."""
        ...

    def recover(self) -> None: ...

    def close(self) -> None: ...


class GraphedEngine:
    """An engine with graphs, the smallest first. A step takes the first one that takes it."""

    def __init__(self, eager: Eager, graphs: Sequence[Graph], device: Device, count: CountLaunch) -> None:
        self._eager, self._graphs, self._device, self._count = eager, list(graphs), device, count
        self.facts = replace(eager.facts, capture_sizes=tuple(graph.shape.tokens for graph in graphs))

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> Step:
        graph = None if spans is not None else self._taking(token_ids.size, lengths.size, int(lengths.max()))
        if graph is None:
            return _EagerStep(self._eager.prepare(token_ids, lengths, second_segments, spans), self._count)
        inputs = StepInputs(token_ids, lengths, second_segments)
        graph.prepare(inputs)
        return _GraphStep(self._eager, graph, inputs, self._count)

    def recover(self) -> None:
        """Wait for what a failed step queued, and check that the model still computes. Raises EngineBroken."""
        with device_errors():
            self._device.drain()
        for graph in self._graphs:
            graph.recover()
        self._eager.recover()

    def close(self) -> None:
        self._graphs.clear()  # before the weights that they refer to
        self._eager.close()

    def _taking(self, tokens: int, queries: int, longest: int) -> Graph | None:
        graph = next((each for each in self._graphs if each.shape.takes(tokens, queries, longest)), None)
        if graph is None or graph.shape.tokens > _MOST_OVER * max(tokens, self._graphs[0].shape.tokens):
            return None
        return graph


@dataclass(frozen=True, slots=True)
class _EagerStep:
    step: Step
    count: CountLaunch

    def execute(self) -> Matrix:
        self.count(Launch.EAGER)
        return self.step.execute()


@dataclass(frozen=True, slots=True)
class _GraphStep:
    eager: Eager
    graph: Graph
    inputs: StepInputs
    count: CountLaunch

    def execute(self) -> Matrix:
        self.count(Launch.GRAPH)
        with device_errors():
            return self.eager.finished(self.graph.run(self.inputs))


def with_graphs(eager: Eager, device: Device, count: CountLaunch) -> GraphedEngine:
    """Capture graphs, and keep those that agree with the eager engine. Raises DeviceLost."""
    before = device.free_bytes()
    wanted = shapes(eager.facts.step_token_capacity, eager.facts.max_input_tokens) if eager.captures else ()
    graphs = _agreeing(_captured(eager, device, wanted), eager)
    _log.info(
        "captured graphs",
        extra={
            "stage": "graphs",
            "sizes": [graph.shape.tokens for graph in graphs],
            "took_s": round(sum(graph.took_s for graph in graphs), 3),
            "mib": round((before - device.free_bytes()) / _MIB),
        },
    )
    return GraphedEngine(eager, graphs, device, count)


def _captured(eager: Eager, device: Device, wanted: Sequence[Shape]) -> list[Graph]:
    """A graph for each shape that can be captured, the smallest first."""
    found: list[Graph] = []
    for shape in reversed(wanted):  # the largest first: the others fit into the memory that it took
        try:
            with device_errors():
                found.append(Graph(shape, eager, device))
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - models and libraries fail in any way; such steps are eager
            reason = f"{type(error).__name__}: {error}"
            _log.warning("a graph cannot be captured", extra={"tokens": shape.tokens, "reason": reason})
    return found[::-1]


def _agreeing(graphs: Sequence[Graph], eager: Eager) -> list[Graph]:
    """Those whose rows are the eager engine's, on batches of several sizes, in a mixed order over all graphs."""
    facts = eager.facts
    differences: dict[int, list[float]] = {graph.shape.tokens: [] for graph in graphs}
    trials = [(graph, batch) for graph in graphs for batch in _batches(graph.shape, facts)]
    for place in np.random.default_rng(_SEED).permutation(len(trials)):
        graph, inputs = trials[place]
        graph.prepare(inputs)
        with device_errors():
            ours = eager.finished(graph.run(inputs))
        theirs = eager.prepare(inputs.token_ids, inputs.lengths, inputs.second_segments).execute()
        differences[graph.shape.tokens].append(apart(ours, theirs, facts))
    allowed = TOLERANCE[facts.dtype]
    kept = []
    for graph in graphs:
        worst = float(np.max(differences[graph.shape.tokens]))  # np.max keeps NaN
        if worst <= allowed:
            kept.append(graph)
        else:
            extra = {"tokens": graph.shape.tokens, "difference": worst, "tolerance": allowed}
            _log.warning("a graph computes other vectors", extra=extra)
    return kept


def _batches(shape: Shape, facts: EngineFacts) -> Iterator[StepInputs]:
    """Batches that fill a share of a graph's tokens with queries of mixed lengths, the last one of its longest."""
    rng = np.random.default_rng([_SEED, shape.tokens])
    for fill in _FILLS:
        tokens = max(1, int(fill * shape.tokens))
        usual = min(shape.longest, max(2, 2 * shape.tokens // shape.slots))
        lengths = rng.integers(1, usual + 1, shape.slots).astype(np.int32)
        lengths = np.append(np.int32(min(shape.longest, tokens)), lengths)[: shape.slots]
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens, side="right"))]
        if (rest := tokens - int(lengths.sum())) and lengths.size < shape.slots and rest <= shape.longest:
            lengths = np.append(lengths, np.int32(rest))
        ids = rng.integers(0, facts.vocabulary_size, int(lengths.sum()), np.int32)
        yield StepInputs(ids, lengths, lengths // 2 if facts.token_types else None)
