"""Drive vLLM's EngineCore in process for generation: continuous batching, one step at a time.

Seeded sequences draw each token by their seed and the token's place, not by one stream of numbers: another server that
resumes the generation draws the same tokens.

It embeds as well if it is loaded so: an embedding is a request for one token, which is dropped; its vector is pooled
from the hidden states of its prompt (`tap.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm import __version__ as vllm_version
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from modelserver.engines.core import LoadOptions, engine_core, facts_of, on_cpu
from modelserver.engines.engine import EMBED_AND_GENERATE, EngineFacts, EngineLoad, Logprobs, NewTokens, StepLoad, Task
from modelserver.engines.pooling import Embedding, Pooling
from modelserver.engines.tap import NAME, refusal, tap
from modelserver.engines.vllm_internals import runner_of
from modelserver.errors import CannotStart, EngineBroken, device_errors
from protos.modelserver.v1 import modelserver_pb2 as pb

_CPU_SEQUENCES, _GPU_SEQUENCES = 128, 256
"""Sequences at once; the rest wait. On a CPU more would only make every step longer."""
_CPU_STEP_TOKENS, _GPU_STEP_TOKENS = 2048, 8192
_CPU_QUERIES, _GPU_QUERIES = 256, 768
"""Embeddings at once, beside the sequences: short queries that fill a step. Each takes a row of token ids."""
_ADAPTERS = 2
"""One, and a place that stays empty: on a CPU vLLM applies the adapter in the last place to rows without one."""
_FIRST, _SECOND = -1, 0
"""vLLM's priorities: embeddings start before prompts that wait."""
_WATERMARK = 0.05
"""Share of the KV cache kept free when a sequence starts: preemptions fall from 30 % of the tokens to 8 %."""
_FIXED_WIDTH = 2**64 - 1  # the finaliser works modulo 2^64
_MOST_STOP_IDS = 128
"""Model Runner V2 fails the step of a sequence with more."""


class VllmGenerator:
    """One model in vLLM's general engine."""

    def __init__(self, core: EngineCore, facts: EngineFacts, embedding: Embedding | None = None) -> None:
        """Take over a loaded EngineCore on the thread that built it. Raises CannotStart for another kind of model.

        `embedding`: how it embeds; None: it does not.
        """
        self.core = core
        config = core.vllm_config.model_config
        if "generate" not in core.get_supported_tasks():
            raise CannotStart(f"{config.model} is not a model that generates for vLLM {vllm_version}")
        self._scheduler: Any = core.scheduler
        self._generation_config: dict[str, Any] = config.try_get_generation_config() or {}
        self._defaults: dict[str, Any] = config.get_diff_sampling_param() or {}
        self._eos: int | None = _eos(config.hf_text_config, self._generation_config)
        self.facts = facts
        self._scheduled: dict[str, int] = {}
        self._count_scheduled()
        runner = runner_of(core)
        if not core.vllm_config.use_v2_model_runner:  # the second draws by seed and position by itself
            _key_seeds(runner)
        self._embedding = embedding
        self._lora: LoRARequest | None = None
        if embedding is not None:
            tap(runner, embedding.pooling)
            if embedding.adapter is not None:
                self._lora = LoRARequest("embedding", 1, str(embedding.adapter))

    @property
    def running(self) -> int:
        return sum(not _embeds(request) for request in self._scheduler.running)

    @property
    def load(self) -> EngineLoad:
        decoding, waiting_tokens = 0, 0
        begun: list[int] = []
        embeddings: list[int] = []
        for request in self._scheduler.requests.values():
            left: int = request.num_tokens - request.num_computed_tokens
            if _embeds(request):
                embeddings.append(left)
            elif request.status != RequestStatus.RUNNING:
                waiting_tokens += left
            elif left > 1:
                begun.append(left)
            else:
                decoding += 1
        return EngineLoad(decoding, begun, waiting_tokens, embeddings)

    @property
    def free_kv_tokens(self) -> int:
        blocks: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        block_size: int = self.core.vllm_config.cache_config.block_size
        return blocks * block_size

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.has_requests())

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        self._add(name, token_ids, self._params(sampling), priority=_SECOND, turn_s=turn_s)

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        assert self._embedding is not None, "This engine does not embed, but was given an embedding. This is a bug."
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            skip_reading_prefix_cache=self._embedding.pooling is not Pooling.LAST,
        )
        self._add(NAME + name, token_ids, params, priority=_FIRST, turn_s=time.monotonic(), lora=self._lora)

    def abort(self, names: Collection[str]) -> None:
        self.core.abort_requests([*names, *(NAME + name for name in names)])

    def limit(self, step_tokens: int, sequences: int, prompt_part: int = 0) -> None:
        embeddings = sum(map(_embeds, self._scheduler.requests.values())) if self._embedding is not None else 0
        self._scheduler.max_num_scheduled_tokens = min(step_tokens, self.facts.step_token_capacity)
        self._scheduler.max_num_active_reqs = min(sequences, self.facts.max_sequences) + embeddings
        self._scheduler.scheduler_config.long_prefill_token_threshold = prompt_part

    def preempt(self) -> None:
        """Preempt every generation; each resumes with the tokens that it has.

        As vLLM's `reset_prefix_cache` does, but cached blocks stay, so that little is computed again.
        """
        scheduler, now_s = self._scheduler, time.monotonic()
        running, scheduler.running = scheduler.running, []
        for request in reversed(running):
            if _embeds(request):
                scheduler.running.insert(0, request)
            else:
                scheduler._preempt_request(request, now_s)  # noqa: SLF001 - vLLM has no public way
                scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        decoding = self.load.decoding
        self._scheduled = {}
        with device_errors():
            outputs, _ = self.core.step()
        new = [_new_tokens(output) for each in outputs.values() for output in each.outputs]
        scheduled = self._scheduled
        embedding_tokens = 0
        if self._embedding is not None:
            embedding_tokens = sum(tokens for name, tokens in scheduled.items() if name.startswith(NAME))
        of_generations = sum(scheduled.values()) - embedding_tokens
        decoding = min(decoding, of_generations)
        by_name = {name.removeprefix(NAME): tokens for name, tokens in scheduled.items()}
        return new, StepLoad(of_generations - decoding, decoding, embedding_tokens, by_name)

    def discard(self, names: Collection[str]) -> None:
        """Forget the sequences of a step that raised, with all that is cached. Raises EngineBroken.

        vLLM caches a prompt's blocks when they are allocated: the step that raised never computed them.
        """
        self.abort(names)
        if not self._scheduler.reset_prefix_cache():
            raise EngineBroken("the prefix cache of a step that failed cannot be cleared")

    def recover(self) -> None:
        try:
            self.discard(list(self._scheduler.requests))
            self.core.step()  # a step without work, in which the runner forgets the aborted
            self.add("probe", [1, 1], pb.Sampling(max_tokens=1))
            outputs, _ = self.step()
        except Exception as error:
            raise EngineBroken(f"the engine does not recover: {type(error).__name__}: {error}") from error
        if not outputs:
            raise EngineBroken("the engine does not recover: it generates nothing")

    def close(self) -> None:
        """Free the model and vLLM's process groups."""
        self.core.shutdown()
        del self.core, self._scheduler  # a reference to the engine does not keep the weights

    def _add(
        self,
        name: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int,
        turn_s: float,
        lora: LoRARequest | None = None,
    ) -> None:
        request = Request(
            name,
            list(token_ids),
            params,
            None,
            arrival_time=turn_s,  # vLLM orders waiting requests of one priority by it
            block_hasher=self.core.request_block_hasher,
            lora_request=lora,
            priority=priority,
        )
        self._scheduler.add_request(request)

    def _params(self, sampling: pb.Sampling) -> SamplingParams:
        """The sequence's parameters over those in the model's files over vLLM's defaults."""
        given: dict[str, Any] = {
            name: getattr(sampling, name)
            for name in ("temperature", "top_p", "top_k", "seed", "repetition_penalty", "logprobs")
            if sampling.HasField(name)
        }
        defaults = {name: value for name, value in self._defaults.items() if name != "max_tokens"}
        params = SamplingParams(
            **(defaults | given),
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=sampling.ignore_eos,
            detokenize=False,
        )
        params.update_from_generation_config(self._generation_config, self._eos)
        if len(params.all_stop_token_ids) > _MOST_STOP_IDS:
            raise ValueError(f"more than {_MOST_STOP_IDS} stop token ids, those included that end a text of this model")
        return params

    def _count_scheduled(self) -> None:
        schedule = self._scheduler.schedule

        def counted(*arguments: Any, **options: Any) -> Any:
            output = schedule(*arguments, **options)
            self._scheduled = output.num_scheduled_tokens
            return output

        self._scheduler.schedule = counted


def load(options: LoadOptions, embedding: Embedding | None = None) -> VllmGenerator:
    """Load a model into vLLM; the calling thread becomes the engine's. `embedding`: how it embeds as well.

    Raises CannotStart if both cannot share this engine.
    """
    cpu = on_cpu()
    sequences = _CPU_SEQUENCES if cpu else _GPU_SEQUENCES
    step_tokens = options.step_tokens or (_CPU_STEP_TOKENS if cpu else _GPU_STEP_TOKENS)
    context = options.max_input_tokens or (min(options.model_tokens, _CPU_STEP_TOKENS) if cpu else None)
    common: dict[str, Any] = {
        "runner": "generate",
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "watermark": _WATERMARK,
        "scheduling_policy": "priority",
    }
    if embedding is None:
        core = engine_core(
            options, max_model_len=context, max_num_batched_tokens=step_tokens, max_num_seqs=sequences, **common
        )
        return VllmGenerator(core, _facts(core))
    if embedding.adapter is not None:
        common |= {"enable_lora": True, "max_loras": _ADAPTERS, "max_lora_rank": embedding.adapter_rank}
    core = engine_core(
        options,
        # The dropped token needs a place behind the longest input.
        max_model_len=None if context is None else min(context + 1, options.model_tokens),
        max_num_batched_tokens=step_tokens,
        max_num_seqs=sequences + (_CPU_QUERIES if cpu else _GPU_QUERIES),
        **common,
    )
    if reason := refusal(core.vllm_config):
        core.shutdown()
        raise CannotStart(f"the model cannot embed and generate in one engine: {reason}; set model.task to one task")
    facts = _facts(core)
    facts = replace(
        facts,
        kind="mixed",
        tasks=EMBED_AND_GENERATE,
        dimensions=core.vllm_config.model_config.get_hidden_size(),
        context_tokens=min(context or facts.context_tokens, facts.context_tokens),
        max_input_tokens=facts.max_input_tokens - 1,
        max_sequences=sequences,
        step_query_capacity=facts.step_query_capacity - sequences,
    )
    return VllmGenerator(core, facts, embedding)


def _facts(core: EngineCore) -> EngineFacts:
    cache = core.vllm_config.cache_config
    blocks = (cache.num_gpu_blocks or 0) - 1  # block 0 is vLLM's own
    facts = facts_of(core)
    return replace(
        facts,
        tasks=frozenset((Task.GENERATE,)),
        context_tokens=facts.max_input_tokens,
        max_sequences=facts.step_query_capacity,
        kv_tokens=blocks * cache.block_size,
    )


def _eos(model_config: Any, generation_config: dict[str, Any]) -> int | None:
    """The token that ends a text; of several the first, the others are stop tokens."""
    eos = generation_config.get("eos_token_id", getattr(model_config, "eos_token_id", None))
    return eos[0] if isinstance(eos, list) and eos else eos if isinstance(eos, int) else None


def _new_tokens(output: EngineCoreOutput) -> NewTokens:
    reason = output.finish_reason
    vector = output.pooling_output
    return NewTokens(
        output.request_id.removeprefix(NAME),
        output.new_token_ids,
        finished=reason is not None,
        length=reason is FinishReason.LENGTH,
        stop_tokens=1 if reason is FinishReason.STOP else 0,
        logprobs=None if output.new_logprobs is None else _logprobs(output.new_logprobs),
        vector=None if vector is None else vector.numpy(),
        broken=vector is None and output.num_nans_in_logits > 0,  # counted where VLLM_COMPUTE_NANS_IN_LOGITS says so
    )


def _logprobs(found: Any) -> Logprobs:
    return Logprobs(
        np.asarray(found.logprob_token_ids, np.int32),
        np.asarray(found.logprobs, np.float32),
        np.asarray(found.sampled_token_ranks, np.int32).reshape(-1),
    )


def _embeds(request: Any) -> bool:
    return bool(request.request_id.startswith(NAME))


def _key_seeds(runner: Any) -> None:
    """Let seeded sequences draw by seed and place. Raises CannotStart if vLLM's runner is not the known one."""
    if runner is None or not hasattr(runner, "discard_request_mask") or not hasattr(runner, "optimistic_seq_lens_cpu"):
        raise CannotStart(
            f"the model runner of vLLM {vllm_version} is not known:"
            " a seed could not be kept when a sequence continues elsewhere"
        )
    kind: Any = type(runner)

    class Seeded(kind):  # type: ignore[misc]  # whichever runner this build has
        def sample_tokens(self, grammar_output: Any) -> Any:
            batch = self.input_batch
            generators: dict[int, Any] = batch.generators
            unfinished: dict[int, Any] = {}
            if generators:
                for row in np.nonzero(self.discard_request_mask.np[: batch.num_reqs])[0]:
                    if int(row) in generators:  # a part of a prompt draws nothing
                        unfinished[int(row)] = generators.pop(int(row))
                for row, generator in generators.items():
                    seed = self.requests[batch.req_ids[row]].sampling_params.seed
                    generator.manual_seed(_mixed(seed, int(self.optimistic_seq_lens_cpu[row])))
            try:
                return super().sample_tokens(grammar_output)
            finally:
                generators.update(unfinished)

    runner.__class__ = Seeded


def _mixed(seed: int, position: int) -> int:
    """Another 63 bits for each seed and position (the finaliser of SplitMix64: Steele, Lea and Flood, 2014)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9) & _FIXED_WIDTH
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _FIXED_WIDTH
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _FIXED_WIDTH
    return (mixed ^ (mixed >> 31)) >> 1
