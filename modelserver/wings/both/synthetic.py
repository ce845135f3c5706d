"""Embeddings beside generations, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from modelserver.engines.synthetic import LIES, vectors
from modelserver.wings.generation.generator import NewTokens
from modelserver.wings.generation.synthetic import SyntheticGenerator, SyntheticSequence
from protos.modelserver.v1 import modelserver_pb2 as pb


class SyntheticMixedGenerator(SyntheticGenerator):
    """Gives embeddings the vectors of `SyntheticEngine`."""

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        self.sequences[name] = SyntheticSequence(list(token_ids), pb.Sampling(), len(token_ids), 0, embeds=True)

    @override
    def next_of(self, name: str) -> NewTokens:
        sequence = self.sequences[name]
        if not sequence.embeds:
            return super().next_of(name)
        del self.sequences[name]
        ids = np.array(sequence.token_ids, np.int32)
        vector = vectors(ids, np.array([ids.size], np.int32), self.facts.dimensions)[0]
        if self.poison is not None and self.lied_to(sequence):
            vector = np.full_like(vector, LIES[self.poison.mode])
        return NewTokens(name, [0], finished=True, length=True, vector=vector)
