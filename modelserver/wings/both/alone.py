"""Steps of embeddings alone, for the profile of a model that also generates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from modelserver.engines.engine import EngineFacts, IdArray, Matrix
from modelserver.errors import StepFailed
from modelserver.wings.both.generator import MixedGenerator
from modelserver.wings.generation.generator import Vector


@dataclass(frozen=True, slots=True)
class EmbeddingsAlone:
    """The prepared queries run in one step, or in several if the engine has not the room."""

    engine: MixedGenerator

    @property
    def facts(self) -> EngineFacts:
        return self.engine.facts

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> AloneStep:
        bounds = [0, *np.cumsum(lengths).tolist()]
        return AloneStep(self.engine, [token_ids[start:end].tolist() for start, end in pairwise(bounds)])


@dataclass(frozen=True, slots=True)
class AloneStep:
    """The queries' ids."""

    engine: MixedGenerator
    queries: list[list[int]]

    def execute(self) -> Matrix:
        engine, facts = self.engine, self.engine.facts
        names = [f"alone {number}" for number in range(len(self.queries))]
        for name, ids in zip(names, self.queries, strict=True):
            engine.embed(name, ids)
        engine.limit(facts.step_token_capacity, facts.max_sequences)
        found: dict[str, Vector] = {}
        while engine.has_work:
            for new in engine.step()[0]:
                if new.vector is not None:
                    found[new.name] = new.vector
        if missing := [name for name in names if name not in found]:
            raise StepFailed(f"{len(missing)} of {len(names)} queries have no vector")
        return np.stack([found[name] for name in names])
