"""Drive vLLM's EngineCore in process for generation: continuous batching, one step at a time.

Seeded sequences draw each token by their seed and the token's place, not by one stream of numbers: another server that
resumes the generation draws the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm import __version__ as vllm_version
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from modelserver.engines.core import LoadOptions, engine_core, facts_of, on_cpu
from modelserver.engines.engine import EngineFacts, Task
from modelserver.engines.vllm_internals import runner_of
from modelserver.errors import CannotStart, EngineBroken, device_errors
from modelserver.wings.generation.generator import EngineLoad, Logprobs, NewTokens, StepLoad
from protos.modelserver.v1 import modelserver_pb2 as pb

_CPU_SEQUENCES, _GPU_SEQUENCES = 128, 256
"""Sequences at once; the rest wait. On a CPU more would only make every step longer."""
_CPU_STEP_TOKENS, _GPU_STEP_TOKENS = 2048, 8192
_WATERMARK = 0.05
"""Share of the KV cache kept free when a sequence starts: preemptions fall from 30 % of the tokens to 8 %."""
SCHEDULING: Mapping[str, Any] = {
    "runner": "generate",
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "watermark": _WATERMARK,
    "scheduling_policy": "priority",
}
"""Arguments of EngineArgs for every engine that generates."""
_FIXED_WIDTH = 2**64 - 1  # the finaliser works modulo 2^64
_MOST_STOP_IDS = 128
"""Model Runner V2 fails the step of a sequence with more."""


class VllmGenerator:
    """One model in vLLM's general engine.

    The wing `both` derives from it, and puts embeddings beside generations: `embeds` tells them apart by their names.
    """

    def __init__(self, core: EngineCore, facts: EngineFacts) -> None:
        """Take over a loaded EngineCore on the thread that built it. Raises CannotStart for another kind of model."""
        self.core = core
        config = core.vllm_config.model_config
        if "generate" not in core.get_supported_tasks():
            raise CannotStart(f"{config.model} is not a model that generates for vLLM {vllm_version}")
        self.scheduler: Any = core.scheduler
        self._generation_config: dict[str, Any] = config.try_get_generation_config() or {}
        self._defaults: dict[str, Any] = config.get_diff_sampling_param() or {}
        self._eos: int | None = _eos(config.hf_text_config, self._generation_config)
        self.facts = facts
        self._scheduled: dict[str, int] = {}
        self._count_scheduled()
        runner = runner_of(core)
        if not core.vllm_config.use_v2_model_runner:  # the second draws by seed and position by itself
            _key_seeds(runner)

    def embeds(self, name: str) -> bool:
        """Whether the request of that name is an embedding; by default none is."""
        del name
        return False

    @property
    def running(self) -> int:
        return sum(not self.embeds(request.request_id) for request in self.scheduler.running)

    @property
    def load(self) -> EngineLoad:
        decoding, waiting_tokens = 0, 0
        begun: list[int] = []
        embeddings: list[int] = []
        for request in self.scheduler.requests.values():
            left: int = request.num_tokens - request.num_computed_tokens
            if self.embeds(request.request_id):
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
        blocks: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        block_size: int = self.core.vllm_config.cache_config.block_size
        return blocks * block_size

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.has_requests())

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        self.add_request(name, token_ids, self._params(sampling), turn_s=turn_s)

    def abort(self, names: Collection[str]) -> None:
        self.core.abort_requests(list(names))

    def limit(self, step_tokens: int, sequences: int, prompt_part: int = 0) -> None:
        embeddings = sum(map(self.embeds, self.scheduler.requests))
        self.scheduler.max_num_scheduled_tokens = min(step_tokens, self.facts.step_token_capacity)
        self.scheduler.max_num_active_reqs = min(sequences, self.facts.max_sequences) + embeddings
        self.scheduler.scheduler_config.long_prefill_token_threshold = prompt_part

    def preempt(self) -> None:
        """Preempt every generation; each resumes with the tokens that it has.

        As vLLM's `reset_prefix_cache` does, but cached blocks stay, so that little is computed again.
        """
        scheduler, now_s = self.scheduler, time.monotonic()
        running, scheduler.running = scheduler.running, []
        for request in reversed(running):
            if self.embeds(request.request_id):
                scheduler.running.insert(0, request)
            else:
                scheduler._preempt_request(request, now_s)  # noqa: SLF001 - vLLM has no public way
                scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        decoding = self.load.decoding
        self._scheduled = {}
        with device_errors():
            outputs, _ = self.core.step()
        new = [self.new_tokens(output) for each in outputs.values() for output in each.outputs]
        return new, self.step_load(self._scheduled, decoding)

    def step_load(self, scheduled: Mapping[str, int], decoding: int) -> StepLoad:
        """The work of a step of which each request had so many tokens, at most `decoding` of them new ones."""
        tokens = sum(scheduled.values())
        decoding = min(decoding, tokens)
        return StepLoad(tokens - decoding, decoding, by_name=scheduled)

    def new_tokens(self, output: EngineCoreOutput) -> NewTokens:
        """The part of a step's output that is one request's."""
        reason = output.finish_reason
        return NewTokens(
            output.request_id,
            output.new_token_ids,
            finished=reason is not None,
            length=reason is FinishReason.LENGTH,
            stop_tokens=1 if reason is FinishReason.STOP else 0,
            logprobs=None if output.new_logprobs is None else _logprobs(output.new_logprobs),
            broken=output.num_nans_in_logits > 0,  # counted where VLLM_COMPUTE_NANS_IN_LOGITS says so
        )

    def discard(self, names: Collection[str]) -> None:
        """Forget the sequences of a step that raised, with all that is cached. Raises EngineBroken.

        vLLM caches a prompt's blocks when they are allocated: the step that raised never computed them.
        """
        self.abort(names)
        if not self.scheduler.reset_prefix_cache():
            raise EngineBroken("the prefix cache of a step that failed cannot be cleared")

    def recover(self) -> None:
        try:
            self.discard(list(self.scheduler.requests))
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
        del self.core, self.scheduler  # a reference to the engine does not keep the weights

    def add_request(
        self,
        name: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        turn_s: float,
        priority: int = 0,
        lora: LoRARequest | None = None,
    ) -> None:
        """Queue a request: of those that wait, the least `priority` is first, then the least `turn_s`."""
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
        self.scheduler.add_request(request)

    def _params(self, sampling: pb.Sampling) -> SamplingParams:
        """The sequence's parameters over those in the model's files over vLLM's defaults."""
        given: dict[str, Any] = {
            name: getattr(sampling, name)
            for name in ("temperature", "top_p", "top_k", "seed", "repetition_penalty", "logprobs")
            if sampling.HasField(name)
        }
        defaults = {name: value for name, value in self._defaults.items() if name != "max_tokens"}
        try:
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
        except VLLMValidationError as error:  # which is no ValueError
            raise ValueError(str(error)) from error
        params.update_from_generation_config(self._generation_config, self._eos)
        if len(params.all_stop_token_ids) > _MOST_STOP_IDS:
            raise ValueError(f"more than {_MOST_STOP_IDS} stop token ids, those included that end a text of this model")
        return params

    def _count_scheduled(self) -> None:
        schedule = self.scheduler.schedule

        def counted(*arguments: Any, **options: Any) -> Any:
            output = schedule(*arguments, **options)
            self._scheduled = output.num_scheduled_tokens
            return output

        self.scheduler.schedule = counted


def load(options: LoadOptions) -> VllmGenerator:
    """Load a model into vLLM; the calling thread becomes the engine's."""
    limits = limits_of(options)
    core = engine_core(
        options,
        max_model_len=limits.context_tokens,
        max_num_batched_tokens=limits.step_tokens,
        max_num_seqs=limits.sequences,
        **SCHEDULING,
    )
    return VllmGenerator(core, generation_facts(core))


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine that generates is loaded for; `context_tokens` None: as much as the model's files say."""

    step_tokens: int
    sequences: int
    context_tokens: int | None


def limits_of(options: LoadOptions) -> EngineLimits:
    """By the options, and by the device."""
    cpu = on_cpu()
    step_tokens = options.step_tokens or (_CPU_STEP_TOKENS if cpu else _GPU_STEP_TOKENS)
    context = options.max_input_tokens or (min(options.model_tokens, _CPU_STEP_TOKENS) if cpu else None)
    return EngineLimits(step_tokens, _CPU_SEQUENCES if cpu else _GPU_SEQUENCES, context)


def generation_facts(core: EngineCore) -> EngineFacts:
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


def _logprobs(found: Any) -> Logprobs:
    return Logprobs(
        np.asarray(found.logprob_token_ids, np.int32),
        np.asarray(found.logprobs, np.float32),
        np.asarray(found.sampled_token_ranks, np.int32).reshape(-1),
    )


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
