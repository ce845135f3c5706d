"""Embed in the steps of vLLM's generating engine.

An embedding is a request for one token, which is dropped; its vector is pooled from the hidden states of its prompt
(`tap.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.core import EngineCore

from modelserver.engines.core import LoadOptions, engine_core, on_cpu
from modelserver.engines.engine import EngineFacts
from modelserver.engines.pooling import Pooling
from modelserver.engines.vllm_internals import runner_of
from modelserver.errors import CannotStart
from modelserver.wings.both.embedding import Embedding
from modelserver.wings.both.generator import EMBED_AND_GENERATE
from modelserver.wings.both.tap import NAME, refusal, tap
from modelserver.wings.generation.generator import NewTokens, StepLoad
from modelserver.wings.generation.vllm_generator import SCHEDULING, VllmGenerator, generation_facts, limits_of

_CPU_QUERIES, _GPU_QUERIES = 256, 768
"""Embeddings at once, beside the sequences: short queries that fill a step. Each takes a row of token ids."""
_ADAPTERS = 2
"""One, and a place that stays empty: on a CPU vLLM applies the adapter in the last place to rows without one."""
_FIRST = -1
"""vLLM's priority of embeddings, which start before prompts that wait: generations have 0."""


class VllmMixedGenerator(VllmGenerator):
    """One model in vLLM's general engine that generates and embeds."""

    def __init__(self, core: EngineCore, facts: EngineFacts, embedding: Embedding) -> None:
        """Take over a loaded EngineCore on the thread that built it. Raises CannotStart for another kind of model."""
        super().__init__(core, facts)
        self._embedding = embedding
        self._lora: LoRARequest | None = None
        tap(runner_of(core), embedding.pooling)
        if embedding.adapter is not None:
            self._lora = LoRARequest("embedding", 1, str(embedding.adapter))

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            skip_reading_prefix_cache=self._embedding.pooling is not Pooling.LAST,
        )
        self.add_request(NAME + name, token_ids, params, turn_s=time.monotonic(), priority=_FIRST, lora=self._lora)

    @override
    def embeds(self, name: str) -> bool:
        return name.startswith(NAME)

    @override
    def abort(self, names: Collection[str]) -> None:
        super().abort([*names, *(NAME + name for name in names)])

    @override
    def step_load(self, scheduled: Mapping[str, int], decoding: int) -> StepLoad:
        embedding_tokens = sum(tokens for name, tokens in scheduled.items() if self.embeds(name))
        of_generations = sum(scheduled.values()) - embedding_tokens
        decoding = min(decoding, of_generations)
        by_name = {name.removeprefix(NAME): tokens for name, tokens in scheduled.items()}
        return StepLoad(of_generations - decoding, decoding, embedding_tokens, by_name)

    @override
    def new_tokens(self, output: EngineCoreOutput) -> NewTokens:
        new, vector = super().new_tokens(output), output.pooling_output
        if vector is None:
            return replace(new, name=new.name.removeprefix(NAME))
        return replace(new, name=new.name.removeprefix(NAME), vector=vector.numpy(), broken=False)


def load(options: LoadOptions, embedding: Embedding) -> VllmMixedGenerator:
    """Load a model that embeds and generates into vLLM; the calling thread becomes the engine's.

    Raises CannotStart if both cannot share this engine.
    """
    limits = limits_of(options)
    context = limits.context_tokens
    arguments: dict[str, Any] = dict(SCHEDULING)
    if embedding.adapter is not None:
        arguments |= {"enable_lora": True, "max_loras": _ADAPTERS, "max_lora_rank": embedding.adapter_rank}
    core = engine_core(
        options,
        # The dropped token needs a place behind the longest input.
        max_model_len=None if context is None else min(context + 1, options.model_tokens),
        max_num_batched_tokens=limits.step_tokens,
        max_num_seqs=limits.sequences + (_CPU_QUERIES if on_cpu() else _GPU_QUERIES),
        **arguments,
    )
    if reason := refusal(core.vllm_config):
        core.shutdown()
        raise CannotStart(f"the model cannot embed and generate in one engine: {reason}; set model.task to one task")
    facts = generation_facts(core)
    facts = replace(
        facts,
        kind="mixed",
        tasks=EMBED_AND_GENERATE,
        dimensions=core.vllm_config.model_config.get_hidden_size(),
        context_tokens=min(context or facts.context_tokens, facts.context_tokens),
        max_input_tokens=facts.max_input_tokens - 1,
        max_sequences=limits.sequences,
        step_query_capacity=facts.step_query_capacity - limits.sequences,
    )
    return VllmMixedGenerator(core, facts, embedding)
