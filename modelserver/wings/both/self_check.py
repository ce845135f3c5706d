"""Compare the tasks of one engine apart and in shared steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelserver.engines.engine import EngineFacts
from modelserver.wings.both.generator import MixedGenerator
from modelserver.wings.generation.generator import Logprobs, NewTokens, Vector
from protos.modelserver.v1 import modelserver_pb2 as pb

MIXED_TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""The largest difference of components of unit vectors, by dtype: parts of a prompt are rounded otherwise."""
_SLACK = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Two tokens whose log probabilities differ by less may change places; by dtype."""

_MIXED_SEED = 20_240_503
_GENERATIONS, _EMBEDDINGS = 8, 16
_NEW_TOKENS, _RESUME_AT = 10, 4
_PROMPT_TOKENS, _QUERY_TOKENS, _DOCUMENT_TOKENS = 24, 16, 200
_STEP_TOKENS, _PART_TOKENS = 96, 40
_SEEDS = 4  # generations with a seed: one by chance alike proves nothing
_DISORDER = 2.0
"""The highest temperature: random numbers rather than roundings decide."""
_RESUMED = {"float32": 4, "float16": 2, "bfloat16": 2}
"""The least number of seeded generations that resume with the same token, by dtype."""

Ids = list[int]


@dataclass(slots=True)
class _Found:
    """The results of one run, by name."""

    tokens: dict[str, Ids] = field(default_factory=dict[str, Ids])
    logprobs: dict[str, list[Logprobs]] = field(default_factory=dict[str, list[Logprobs]])
    vectors: dict[str, Vector] = field(default_factory=dict[str, Vector])

    def add(self, new: NewTokens) -> None:
        if new.vector is not None:
            self.vectors[new.name] = new.vector / max(float(np.linalg.norm(new.vector)), 1e-30)
            return
        self.tokens.setdefault(new.name, []).extend(new.token_ids)
        if new.logprobs is not None:
            self.logprobs.setdefault(new.name, []).append(new.logprobs)


def difference(engine: MixedGenerator) -> str | None:
    """How the same embeddings and generations differ when they share steps; None if they do not.

    The last embedding is a document that is computed in parts. Seeded generations are resumed beside them.
    """
    facts = engine.facts
    queries, prompts = _inputs(facts)
    greedy = pb.Sampling(max_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=4)
    generations = {name: (ids, greedy) for name, ids in prompts.items()}
    started = [ids for ids, _ in zip(prompts.values(), range(_SEEDS), strict=False)]
    seeded = {f"seeded {seed}": (ids, _seeded(seed, _NEW_TOKENS)) for seed, ids in enumerate(started)}
    embedded = _computed(engine, queries, {}, facts.step_token_capacity, 0)
    generated = _computed(engine, {}, generations | seeded, facts.step_token_capacity, 0)
    resumed = {
        name: ([*ids, *generated.tokens[name][:_RESUME_AT]], _seeded(seed, _NEW_TOKENS - _RESUME_AT))
        for seed, (name, (ids, _)) in enumerate(seeded.items())
    }
    mixed = _computed(engine, queries, generations | resumed, _STEP_TOKENS, _PART_TOKENS)
    same = sum(generated.tokens[name][_RESUME_AT] == mixed.tokens[name][0] for name in resumed)
    if same < _RESUMED[facts.dtype]:
        return f"{same} of {len(resumed)} seeded generations draw the same token when they are resumed"
    differ = _tokens_differ(generated, mixed, prompts, _SLACK[facts.dtype])
    return differ or _vectors_differ(embedded, mixed, MIXED_TOLERANCE[facts.dtype])


def _inputs(facts: EngineFacts) -> tuple[dict[str, Ids], dict[str, Ids]]:
    rng = np.random.default_rng(_MIXED_SEED)

    def ids(tokens: int) -> Ids:
        return [int(each) for each in rng.integers(0, facts.vocabulary_size, max(1, tokens))]

    longest = min(facts.max_input_tokens, _DOCUMENT_TOKENS)
    sizes = [*np.minimum(rng.integers(1, _QUERY_TOKENS + 1, _EMBEDDINGS - 1), longest), longest]
    room = facts.context_tokens - _NEW_TOKENS
    prompts = np.minimum(rng.integers(4, _PROMPT_TOKENS + 1, _GENERATIONS), room)
    return (
        {f"query {number}": ids(int(size)) for number, size in enumerate(sizes)},
        {f"prompt {number}": ids(int(size)) for number, size in enumerate(prompts)},
    )


def _seeded(seed: int, tokens: int) -> pb.Sampling:
    return pb.Sampling(max_tokens=tokens, temperature=_DISORDER, top_p=1.0, top_k=0, seed=seed, ignore_eos=True)


def _computed(
    engine: MixedGenerator,
    queries: Mapping[str, Ids],
    generations: Mapping[str, tuple[Ids, pb.Sampling]],
    step_tokens: int,
    part: int,
) -> _Found:
    """Half of the generations run two steps ahead of the rest, so that steps mix decoding and prefill."""
    found = _Found()
    names = list(generations)

    def start(some: Sequence[str]) -> None:
        for name in some:
            engine.add(name, *generations[name])

    def step() -> None:
        engine.limit(step_tokens, engine.facts.max_sequences, part)
        for new in engine.step()[0]:
            found.add(new)

    start(names[::2])
    for _ in range(2 if names else 0):
        step()
    start(names[1::2])
    for name, ids in queries.items():
        engine.embed(name, ids)
    while engine.has_work:
        step()
    return found


def _vectors_differ(apart: _Found, mixed: _Found, tolerance: float) -> str | None:
    if apart.vectors.keys() != mixed.vectors.keys():
        return f"{len(mixed.vectors)} vectors came of {len(apart.vectors)}"
    largest = max(float(np.abs(vector - mixed.vectors[name]).max()) for name, vector in apart.vectors.items())
    if largest <= tolerance:  # false for NaN
        return None
    return f"vectors differ by {largest:.2g} where {tolerance:.2g} is allowed"


def _tokens_differ(apart: _Found, mixed: _Found, names: Mapping[str, Ids], slack: float) -> str | None:
    for name in names:
        if not _agree(apart.tokens[name], mixed.tokens.get(name, []), apart.logprobs.get(name, []), slack):
            return "generations have other tokens beside embeddings"
    return None


def _agree(apart: Ids, mixed: Ids, logprobs: Sequence[Logprobs], slack: float) -> bool:
    """Whether both are equal up to two tokens that are as good as equally probable."""
    if len(apart) != len(mixed):
        return False
    for place, (one, other) in enumerate(zip(apart, mixed, strict=True)):
        if one != other:
            row = logprobs[place]
            near = np.flatnonzero(row.token_ids[0] == other)
            return bool(near.size) and float(row.values[0, 0] - row.values[0, near[0]]) <= slack
    return True
