"""The synthetic engine's vectors, with an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Spans, StepThreads
from modelserver.engines.synthetic import SyntheticEngine
from tests.support.fake_step_engine import facts_of

FACTS = replace(facts_of(step_tokens=1024, step_queries=64, max_input_tokens=256), dimensions=16)


@dataclass(frozen=True, slots=True)
class Shifted:
    """The synthetic engine's vectors, with an error; it raises where it is told to."""

    facts: EngineFacts = FACTS
    error: float = 0.0
    raises: bool = False
    recoveries: list[int] | None = None
    threads: StepThreads | None = None

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> ShiftedStep:
        del second_segments, spans
        return ShiftedStep(self, token_ids, lengths)

    def recover(self) -> None:
        if self.recoveries is not None:
            self.recoveries.append(1)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ShiftedStep:
    engine: Shifted
    token_ids: IdArray
    lengths: IdArray

    def execute(self) -> Matrix:
        if self.engine.raises:
            raise RuntimeError("another vLLM")
        matrix = SyntheticEngine(FACTS, 0.0, 0.0).prepare(self.token_ids, self.lengths).execute()
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True) * np.float32(7)
        matrix[-1, 0] += np.float32(7 * self.engine.error)
        return np.asarray(matrix, np.float32)
