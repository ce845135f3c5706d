"""The check at the start finds an engine whose embeddings and generations disturb each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from modelserver.engines.engine import EngineFacts
from modelserver.engines.synthetic import synthetic_facts
from modelserver.wings.both.generator import EMBED_AND_GENERATE
from modelserver.wings.both.self_check import difference
from modelserver.wings.both.synthetic import SyntheticMixedGenerator
from modelserver.wings.generation.generator import Logprobs, NewTokens, StepLoad
from protos.modelserver.v1 import modelserver_pb2 as pb


def facts(dtype: str = "float32") -> EngineFacts:
    made = synthetic_facts(dimensions=8, max_input_tokens=255, vocabulary_size=1000, step_tokens=512, step_queries=64)
    return replace(made, dtype=dtype, tasks=EMBED_AND_GENERATE, context_tokens=256, max_sequences=32, kv_tokens=1 << 16)


class Disturbed(SyntheticMixedGenerator):
    """Other results while embeddings and generations share steps."""

    tokens = False
    vectors = False
    seeds = False

    @override
    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        shared = bool(self.load.embeddings) and bool(self.load.decoding)
        new, load = super().step()
        return [self._changed(each) for each in new] if shared else new, load

    @override
    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        if self.seeds and sampling.HasField("seed"):
            token_ids = [len(token_ids), *token_ids]
        super().add(name, token_ids, sampling, turn_s)

    def _changed(self, new: NewTokens) -> NewTokens:
        if new.vector is not None and self.vectors:
            return replace(new, vector=new.vector + np.float32(0.1))
        if new.vector is None and self.tokens and new.name.startswith("prompt"):
            token = (new.token_ids[0] + 1) % self.facts.vocabulary_size
            return replace(new, token_ids=[token], logprobs=_only(token))
        return new


def _only(token: int) -> Logprobs:
    return Logprobs(np.array([[token]], np.int32), np.zeros((1, 1), np.float32), np.ones(1, np.int32))


def engine(dtype: str = "float32") -> Disturbed:
    return Disturbed(facts(dtype), 0.0, 0.0, sleep=lambda _: None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_engine_that_keeps_them_apart_passes(dtype: str) -> None:
    assert difference(engine(dtype)) is None


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("vectors", "vectors differ by"),
        ("tokens", "generations have other tokens beside embeddings"),
        ("seeds", "seeded generations draw the same token"),
    ],
)
def test_what_differs_is_found(what: str, told: str) -> None:
    disturbed = engine()
    setattr(disturbed, what, True)
    assert told in (difference(disturbed) or "")
