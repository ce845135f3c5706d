"""Drive vLLM's EngineCore in process for generation: continuous batching, one step at a time.

Seeded sequences draw each token by their seed and the token's place, not by one stream of random numbers: whoever goes
on with a text elsewhere draws the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm import __version__ as vllm_version
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from modelserver.engines.core import LoadOptions, engine_core, facts_of, on_cpu
from modelserver.engines.engine import EngineFacts, Logprobs, NewTokens, StepLoad, Task
from modelserver.errors import CannotStart, EngineBroken
from protos.modelserver.v1 import modelserver_pb2 as pb

_CPU_SEQUENCES, _GPU_SEQUENCES = 128, 256
"""At once: more of them wait; on a CPU more would only make every step longer."""
_CPU_STEP_TOKENS, _GPU_STEP_TOKENS = 2048, 8192
_WATERMARK = 0.05
"""Of the blocks of the cache, kept free when a sequence starts: preemptions fall from 30 % of the tokens to 8 %."""
_FIXED_WIDTH = 2**64 - 1


class VllmGenerator:
    """One model in vLLM's general engine."""

    def __init__(self, core: EngineCore) -> None:
        """Take over a loaded EngineCore on the thread that built it. Raises CannotStart for another kind of model."""
        self._core = core
        config = core.vllm_config.model_config
        if "generate" not in core.get_supported_tasks():
            raise CannotStart(f"{config.model} is not a model that generates for vLLM {vllm_version}")
        self._scheduler: Any = core.scheduler
        self._generation_config: dict[str, Any] = config.try_get_generation_config() or {}
        self._defaults: dict[str, Any] = config.get_diff_sampling_param() or {}
        self._eos: int | None = _eos(config.hf_text_config, self._generation_config)
        self._facts = _facts(core)
        self._scheduled = 0
        self._count_scheduled()
        _key_seeds(core)

    @property
    def facts(self) -> EngineFacts:
        """What it is."""
        return self._facts

    @property
    def running(self) -> int:
        """Sequences that hold keys and values."""
        return len(self._scheduler.running)

    @property
    def decoding(self) -> int:
        """Those of them whose prompt is computed."""
        return sum(request.num_computed_tokens >= request.num_prompt_tokens for request in self._scheduler.running)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of prompts, running or not, that are not computed yet."""
        requests = self._scheduler.requests.values()
        return sum(max(0, request.num_prompt_tokens - request.num_computed_tokens) for request in requests)

    @property
    def free_kv_tokens(self) -> int:
        """Tokens whose keys and values there is room for."""
        blocks: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        block_size: int = self._core.vllm_config.cache_config.block_size
        return blocks * block_size

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._scheduler.has_requests())

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling) -> None:
        """Start a sequence after `token_ids`, all of them valid. Raises ValueError for a parameter out of range."""
        params = self._params(sampling)
        request = Request(
            name,
            list(token_ids),
            params,
            None,
            arrival_time=time.time(),
            block_hasher=self._core.request_block_hasher,
        )
        self._scheduler.add_request(request)

    def abort(self, names: Collection[str]) -> None:
        """Forget sequences, and free what they hold at once; unknown ones are ignored."""
        self._core.abort_requests(list(names))

    def limit(self, step_tokens: int, sequences: int) -> None:
        """What the next steps may hold at the most."""
        self._scheduler.max_num_scheduled_tokens = min(step_tokens, self._facts.step_token_capacity)
        self._scheduler.max_num_active_reqs = min(sequences, self._facts.step_query_capacity)

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step. Raises whatever the engine raises."""
        decoding = self.decoding
        self._scheduled = 0
        outputs, _ = self._core.step()
        new = [_new_tokens(output) for each in outputs.values() for output in each.outputs]
        return new, StepLoad(max(0, self._scheduled - decoding), min(decoding, self._scheduled))

    def recover(self) -> None:
        """Forget every sequence after a step that raised. Raises EngineBroken when the engine cannot go on."""
        try:
            self.abort(list(self._scheduler.requests))
            self._core.step()  # a step without work, in which the runner forgets the aborted
            self.add("probe", [1, 1], pb.Sampling(max_tokens=1))
            outputs, _ = self.step()
        except Exception as error:
            raise EngineBroken(f"the engine does not recover: {type(error).__name__}: {error}") from error
        if not outputs:
            raise EngineBroken("the engine does not recover: it generates nothing")

    def close(self) -> None:
        """Free the model and vLLM's process groups."""
        self._core.shutdown()

    def _params(self, sampling: pb.Sampling) -> SamplingParams:
        """What the sequence asked for, over what the model's own files say, over vLLM's defaults."""
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
        return params

    def _count_scheduled(self) -> None:
        schedule = self._scheduler.schedule

        def counted(*arguments: Any, **options: Any) -> Any:
            output = schedule(*arguments, **options)
            self._scheduled = output.total_num_scheduled_tokens
            return output

        self._scheduler.schedule = counted


def load(options: LoadOptions) -> VllmGenerator:
    """Load a model into vLLM; the calling thread becomes the engine's."""
    cpu = on_cpu()
    core = engine_core(
        options,
        runner="generate",
        max_model_len=options.max_input_tokens or (min(options.model_tokens, _CPU_STEP_TOKENS) if cpu else None),
        max_num_batched_tokens=options.step_tokens or (_CPU_STEP_TOKENS if cpu else _GPU_STEP_TOKENS),
        max_num_seqs=_CPU_SEQUENCES if cpu else _GPU_SEQUENCES,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        watermark=_WATERMARK,
    )
    return VllmGenerator(core)


def _facts(core: EngineCore) -> EngineFacts:
    cache = core.vllm_config.cache_config
    blocks = (cache.num_gpu_blocks or 0) - 1  # block 0 is vLLM's own
    return replace(facts_of(core), task=Task.GENERATE, kv_tokens=blocks * cache.block_size)


def _eos(model_config: Any, generation_config: dict[str, Any]) -> int | None:
    """The token that ends a text; of several the first, the others are stop tokens."""
    eos = generation_config.get("eos_token_id", getattr(model_config, "eos_token_id", None))
    return eos[0] if isinstance(eos, list) and eos else eos if isinstance(eos, int) else None


def _new_tokens(output: EngineCoreOutput) -> NewTokens:
    reason = output.finish_reason
    return NewTokens(
        output.request_id,
        output.new_token_ids,
        finished=reason is not None,
        cut=reason is FinishReason.LENGTH,
        stripped=1 if reason is FinishReason.STOP else 0,
        logprobs=None if output.new_logprobs is None else _logprobs(output.new_logprobs),
    )


def _logprobs(found: Any) -> Logprobs:
    return Logprobs(
        np.asarray(found.logprob_token_ids, np.int32),
        np.asarray(found.logprobs, np.float32),
        np.asarray(found.sampled_token_ranks, np.int32).reshape(-1),
    )


def _key_seeds(core: EngineCore) -> None:
    """Let seeded sequences draw by seed and place. Raises CannotStart where vLLM's runner is not as it was."""
    worker = getattr(core.model_executor, "driver_worker", None)
    runner = getattr(getattr(worker, "worker", None), "model_runner", None)
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
