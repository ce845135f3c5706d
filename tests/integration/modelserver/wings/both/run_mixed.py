"""Have one engine embed and generate random mixes, and write how the results differ from those of each task alone.

Started by `test_generation.py`: `python -m tests.integration.modelserver.wings.both.run_mixed FILE FAMILY …`, for
vLLM's second model runner by way of `on_runner_v2`. Beside it, in the same process, runs `run_generation` or
`run_runner_v2`: importing vLLM takes longer than what is done here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from modelserver.process_env import prepare_engine_env

V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
prepare_engine_env(os.environ, local_model=True, v1_runner=not V2)
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from modelserver.engines.core import LoadOptions  # noqa: E402
from modelserver.engines.pooling import Pooling  # noqa: E402
from modelserver.engines.vllm_internals import runner_of  # noqa: E402
from modelserver.scheduler.queued_batch import (  # noqa: E402
    Answer,
    MergeLimits,
    Outcome,
    QueuedBatch,
)
from modelserver.scheduler.step_queue import QueueBounds, StepQueue  # noqa: E402
from modelserver.service.batch import Batch  # noqa: E402
from modelserver.wings.both import vllm_generator  # noqa: E402
from modelserver.wings.both.embedding import Embedding, read_embedding  # noqa: E402
from modelserver.wings.both.embedding_batches import EmbeddingBatches  # noqa: E402
from modelserver.wings.both.self_check import difference  # noqa: E402
from modelserver.wings.both.tap import Pooler, is_v2  # noqa: E402
from modelserver.wings.both.vllm_generator import VllmMixedGenerator  # noqa: E402
from modelserver.wings.generation.outbox import Outbox  # noqa: E402
from modelserver.wings.generation.step_limits import StepCost, StepLimits, StepTokens  # noqa: E402
from modelserver.wings.generation.steps import Abort, GenerationSteps, Start  # noqa: E402
from protos.modelserver.v1 import modelserver_pb2 as pb  # noqa: E402
from tests.integration.modelserver.several_engines import several_engines  # noqa: E402
from tests.integration.modelserver.tiny_models import likeliest  # noqa: E402
from tests.integration.modelserver.wings.both import run_generation, run_runner_v2  # noqa: E402

VOCABULARY = 2000
POISON = 1999
HIDDEN, LAYERS, KV, RANK = 64, 3, 32, 8
MAX_LEN = 512
MIXES = 1 if V2 else 2
"""Of each model: as many random mixes of `GENERATIONS` and `BATCHES`."""
GENERATIONS, BATCHES = (8, 6) if V2 else (14, 12)
LONGEST = 150 if V2 else 400
_OFTEN = 0.2 if V2 else 0.15
"""How often something is aborted after a step."""
_ALONE = 5
"""One batch of so many goes alone."""


@dataclass(slots=True)
class Model:
    """A model folder, how it embeds, and transformers' models of what embeds and of what generates."""

    folder: Path
    embedding: Embedding
    reference: Any
    base: Any

    def vectors(self, queries: Sequence[list[int]]) -> list[npt.NDArray[np.float32]]:
        """What transformers makes of each query, as unit vectors."""
        return [self._vector(ids) for ids in queries]

    def _vector(self, ids: list[int]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            hidden = self.reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        pooled = {Pooling.LAST: hidden[-1], Pooling.MEAN: hidden.mean(0), Pooling.CLS: hidden[0]}
        vector = pooled[self.embedding.pooling]
        return np.asarray(torch.nn.functional.normalize(vector, dim=-1), np.float32)


def tiny(folder: Path, config: Any, kind: Any, pooling: Pooling, *, adapter: bool = False) -> Model:
    """A small random model; with an adapter it embeds through that one."""
    torch.manual_seed(5)
    made = config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.25,
    )
    made.architectures = [kind.__name__]
    base = model = kind(made).float().eval()
    model.save_pretrained(folder)
    source = folder
    if adapter:
        source = folder / "adapter"
        model = _adapted(source, model)
    modes = {Pooling.LAST: "lasttoken", Pooling.MEAN: "mean_tokens", Pooling.CLS: "cls_token"}
    (source / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{mode}": each is pooling for each, mode in modes.items()}
    content = json.dumps({"word_embedding_dimension": model.config.hidden_size, **flags})
    (source / "1_Pooling" / "config.json").write_text(content, encoding="utf-8")
    return Model(folder, read_embedding(folder, source if adapter else None), model, base)


def _adapted(folder: Path, model: Any) -> Any:
    """Write a random LoRA adapter, and return the model with its weights added."""
    generator = torch.Generator().manual_seed(6)
    merged = deepcopy(model)
    weights: dict[str, torch.Tensor] = {}
    shapes = {"q_proj": (HIDDEN, HIDDEN), "v_proj": (KV, HIDDEN), "o_proj": (HIDDEN, HIDDEN)}
    with torch.no_grad():
        for place, layer in enumerate(merged.model.layers):
            for name, (rows, columns) in shapes.items():
                low = torch.randn(RANK, columns, generator=generator) * 0.2
                high = torch.randn(rows, RANK, generator=generator) * 0.2
                prefix = f"base_model.model.model.layers.{place}.self_attn.{name}"
                weights |= {f"{prefix}.lora_A.weight": low, f"{prefix}.lora_B.weight": high}
                getattr(layer.self_attn, name).weight += 2.0 * high @ low
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(shapes),
        "base_model_name_or_path": "x",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return merged


def model_of(family: str) -> Model:
    """A model of this family, in a folder of its own."""
    folder = Path(mkdtemp()) / family
    match family:
        case "qwen2" | "uncached":
            return tiny(folder, Qwen2Config, Qwen2ForCausalLM, Pooling.LAST)
        case "llama":
            pooling = Pooling.LAST if V2 else Pooling.MEAN
            return tiny(folder, LlamaConfig, LlamaForCausalLM, pooling, adapter=True)
        case _:
            return tiny(folder, MistralConfig, MistralForCausalLM, Pooling.CLS)


def loaded(model: Model, *, cached: bool = True) -> VllmMixedGenerator:
    """With so few blocks of the cache that sequences are preempted; `cached`: with a prefix cache."""
    options: dict[str, Any] = {"enable_prefix_caching": cached, "num_gpu_blocks_override": 48}
    wanted = LoadOptions(
        model_path=str(model.folder),
        dtype="float32",
        model_tokens=MAX_LEN,
        max_input_tokens=MAX_LEN,
        step_tokens=512,
        options=options,
    )
    return vllm_generator.load(wanted, model.embedding)


@dataclass(slots=True)
class Caller:
    """Reads what the steps deliver."""

    tokens: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    ended: dict[int, int] = field(default_factory=dict[int, int])
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self._read)

    def _read(self) -> None:
        step = self.outbox.take()
        assert step is not None
        ids = iter(np.frombuffer(step.token_ids, "<i4").tolist())
        numbers, counts = np.frombuffer(step.sequences, "<u4"), np.frombuffer(step.counts, "<u4")
        for number, size in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.tokens.setdefault(number, []).extend(next(ids) for _ in range(size))
        self.ended |= {each.sequence: each.code for each in step.finished}


class Server:
    """The steps of one engine, run on this thread."""

    def __init__(self, engine: VllmMixedGenerator, step_tokens: int, sequences: int) -> None:
        self.engine = engine
        self.caller = Caller()
        self.outcomes: dict[int, Outcome] = {}
        self.steps = 0
        self.failed: list[str] = []
        self.compositions: dict[str, int] = {}
        self._queue = StepQueue(lambda: 0.0)
        bounds = QueueBounds(MergeLimits(512, 256), 10**6)
        batches = EmbeddingBatches(
            self._queue, lambda _: bounds, self._count, lambda composition, _: self.failed.append(composition.value)
        )
        limits = StepLimits(StepTokens(StepCost(0.0, 0.0, 0.0), 1.0, step_tokens, sequences), None)
        self.work = GenerationSteps(
            lambda _: limits, lambda _: None, lambda _: self.failed.append("generation"), shared=batches
        )
        self.work.open(engine)

    def _count(self, report: Any) -> None:
        name = report.composition.value
        self.compositions[name] = self.compositions.get(name, 0) + 1

    def start(self, number: int, ids: list[int], sampling: pb.Sampling) -> None:
        """A generation."""
        self.work.do(Start(self.caller.outbox, number, ids, sampling))

    def abort(self, number: int) -> None:
        """Of a generation."""
        self.work.do(Abort(self.caller.outbox, number))

    def embed(self, number: int, queries: list[list[int]], *, alone: bool = False) -> QueuedBatch:
        """A batch."""
        lengths = np.array([len(ids) for ids in queries], np.int32)
        ids = np.array([each for query in queries for each in query], np.int32)
        batch = Batch(ids, lengths, len(queries), None, (), alone, 10**6)
        queued = QueuedBatch(batch, lambda outcome: self.outcomes.__setitem__(number, outcome), 0.0)
        self._queue.put(queued)
        return queued

    def withdraw(self, queued: QueuedBatch) -> None:
        """The batch's caller gives up."""
        self._queue.withdraw(queued)
        queued.withdrawn = True

    def step(self) -> None:
        """One step, if there is work."""
        if self.work.wait(self.engine):
            self.work.execute(self.engine)
            self.steps += 1

    @property
    def busy(self) -> bool:
        """Whether work is left."""
        return self.engine.has_work or self._queue.queued_tokens > 0

    def finish(self) -> None:
        """Run until all is done."""
        self.step()
        while self.busy:
            self.step()


@dataclass(slots=True)
class Mix:
    """Random generations and batches of embeddings."""

    prompts: list[list[int]]
    samplings: list[pb.Sampling]
    batches: list[list[list[int]]]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Mix:
        """Some prompts and queries share a beginning, for the prefix cache."""
        head = rng.integers(3, POISON, 70).tolist()

        def ids(tokens: int) -> list[int]:
            drawn: list[int] = rng.integers(3, POISON, tokens).tolist()
            return head + drawn if rng.random() < 0.25 else drawn

        batches = [
            [ids(int(tokens)) for tokens in rng.choice([3, 9, 20, 60, int(rng.integers(100, LONGEST))], size)]
            for size in rng.integers(1, 6, BATCHES)
        ]
        samplings = [
            pb.Sampling(max_tokens=int(tokens), ignore_eos=True)
            for tokens in rng.integers(3, 10 if V2 else 30, GENERATIONS)
        ]
        for place, sampling in enumerate(samplings):
            sampling.temperature = 0.8 if place % 2 else 0.0
            if place % 2:
                sampling.seed = 100 + place
            if place % 3 == 0:
                sampling.top_p = 0.9
        return cls([ids(int(tokens)) for tokens in rng.integers(5, 120, GENERATIONS)], samplings, batches)


def alone(engine: VllmMixedGenerator, mix: Mix) -> dict[int, list[int]]:
    """The tokens of the generations, while nothing is embedded."""
    server = Server(engine, 512, 64)
    for number, (ids, sampling) in enumerate(zip(mix.prompts, mix.samplings, strict=True)):
        server.start(number, ids, sampling)
    server.finish()
    return server.caller.tokens


def mixed(engine: VllmMixedGenerator, model: Model, seed: int) -> dict[str, Any]:
    """One mix, with steps of random sizes, aborts, callers that give up, and batches that go alone."""
    rng = np.random.default_rng(seed)
    mix = Mix.drawn(rng)
    expected = alone(engine, mix)
    server = Server(engine, int(rng.choice([40, 64, 128, 512])), int(rng.integers(4, 20)))
    jobs = [("g", number) for number in range(GENERATIONS)] + [("e", number) for number in range(BATCHES)]
    order = [jobs[place] for place in rng.permutation(len(jobs))]
    dropped: set[tuple[str, int]] = set()
    queued: dict[int, QueuedBatch] = {}
    preempted = _count_preemptions(engine)
    while order or server.busy:
        for kind, number in order[:3]:
            if kind == "g":
                server.start(number, mix.prompts[number], mix.samplings[number])
            else:
                queued[number] = server.embed(number, mix.batches[number], alone=number % _ALONE == 0)
        order = order[3:]
        server.step()
        if rng.random() < _OFTEN:
            number = int(rng.integers(GENERATIONS))
            if number not in server.caller.ended:
                dropped.add(("g", number))
                server.abort(number)
        if rng.random() < _OFTEN and queued:
            number = int(rng.choice(list(queued)))
            if number not in server.outcomes and number % _ALONE:
                dropped.add(("e", number))
                server.withdraw(queued[number])
    answers = {number: outcome for number, outcome in server.outcomes.items() if ("e", number) not in dropped}
    differences = [
        float(np.abs(_unit(row) - vector).max())
        for number, outcome in answers.items()
        if isinstance(outcome, Answer)
        for row, vector in zip(outcome.matrix, model.vectors(mix.batches[number]), strict=True)
    ]
    kept = [number for number in range(GENERATIONS) if ("g", number) not in dropped]
    return {
        "difference": max(differences, default=0.0),
        "vectors": len(differences),
        "vectors expected": sum(len(mix.batches[number]) for number in range(BATCHES) if ("e", number) not in dropped),
        "likeliest": _likeliest(model, mix, expected),
        "same": sum(server.caller.tokens.get(number) == expected[number] for number in kept),
        "generations": len(kept),
        "dropped": len(dropped),
        "preempted": preempted["embedding"] + preempted["generation"],
        "steps": server.steps,
        "compositions": server.compositions,
        "held": len(runner_of(engine.core).pooler.held),
        "failed": server.failed,
    }


def _likeliest(model: Model, mix: Mix, found: dict[int, list[int]]) -> list[list[int]]:
    """The tokens of the first generation, which is greedy, and those of transformers without an adapter."""
    return [found[0], likeliest(model.base, mix.prompts[0], mix.samplings[0].max_tokens)]


def _unit(row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(row / np.linalg.norm(row), np.float32)


def _count_preemptions(engine: VllmMixedGenerator) -> dict[str, int]:
    scheduler: Any = engine.core.scheduler
    counts = {"embedding": 0, "generation": 0}
    inner = type(scheduler)._preempt_request  # noqa: SLF001 - vLLM has no public way

    def counted(request: Any, *arguments: Any, **options: Any) -> Any:
        counts["embedding" if request.request_id.startswith("embedding/") else "generation"] += 1
        return inner(scheduler, request, *arguments, **options)

    scheduler._preempt_request = counted  # noqa: SLF001
    return counts


def poisoned(engine: VllmMixedGenerator, model: Model) -> dict[str, Any]:
    """Generations and batches beside a batch on whose tokens the model raises."""
    mix = Mix.drawn(np.random.default_rng(99))
    expected = alone(engine, mix)
    runner = runner_of(engine.core)
    inner = runner.model.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        ids = options.get("input_ids", arguments[0] if arguments else None)
        if ids is not None and bool((ids == POISON).any()):
            raise RuntimeError("poison")
        return inner(*arguments, **options)

    runner.model.forward = forward
    server = Server(engine, 512, 64)
    for number in range(4):
        server.start(number, mix.prompts[number], mix.samplings[number])
    server.step()
    server.embed(0, mix.batches[0])
    server.embed(1, [[5, 6, POISON, 7]])
    server.embed(2, mix.batches[2])
    server.step()  # all fail
    ended = dict(server.caller.ended)
    tokens = {number: list(server.caller.tokens[number]) for number in range(4)}
    for number in range(4):  # resumed, as an aggregator does
        sampling = deepcopy(mix.samplings[number])
        sampling.max_tokens -= len(tokens[number])
        server.start(number + 10, mix.prompts[number] + tokens[number], sampling)
    server.finish()
    runner.model.forward = inner
    resumed = [tokens[number] + server.caller.tokens.get(number + 10, []) for number in range(4)]
    found = {
        number: float(np.abs(_unit(row) - vector).max())
        for number in (0, 2)
        if isinstance(outcome := server.outcomes[number], Answer)
        for row, vector in zip(outcome.matrix[:1], model.vectors(mix.batches[number][:1]), strict=True)
    }
    return {
        "codes": sorted(ended.values()),
        "resumed": sum(whole == expected[number] for number, whole in enumerate(resumed)),
        "differences": list(found.values()),
        "poison": str(server.outcomes[1]),
        "failed": server.failed,
        "ends": sorted(server.caller.ended.values()),
    }


def longest(engine: VllmMixedGenerator, model: Model, seed: int = 3) -> dict[str, Any]:
    """The longest input that the server says it takes."""
    server = Server(engine, 64, 8)
    ids = np.random.default_rng(seed).integers(3, POISON, engine.facts.max_input_tokens).tolist()
    server.embed(0, [ids])
    server.finish()
    outcome = server.outcomes[0]
    assert isinstance(outcome, Answer), outcome
    apart = np.abs(_unit(outcome.matrix[0]) - model.vectors([ids])[0]).max()
    return {"tokens": len(ids), "difference": float(apart), "steps": server.steps}


def run(family: str) -> dict[str, Any]:
    """All of one model."""
    model = model_of(family)
    engine = loaded(model, cached=family != "uncached")
    runner = runner_of(engine.core)
    found: dict[str, Any] = {
        "on v2": is_v2(runner),
        "check": difference(engine),
        "mixes": [mixed(engine, model, seed) for seed in range(MIXES)],
        "longest": longest(engine, model),
        "poison": poisoned(engine, model),
    }
    if family == "llama":  # nothing of an input with random ids is in the prefix cache: the same engine pools otherwise
        for seed, pooling in enumerate((Pooling.MEAN, Pooling.CLS), start=4):
            runner.pooler, model.embedding = Pooler(pooling), replace(model.embedding, pooling=pooling)
            found[f"longest by {pooling.value}"] = longest(engine, model, seed)
    engine.close()
    return found


def main(file: Path, families: Sequence[str]) -> None:
    """Run these families and the lab of this runner, and write what came out."""
    beside = run_runner_v2 if V2 else run_generation
    with several_engines():
        found = {"lab": beside.results(Path(mkdtemp()))} | {family: run(family) for family in families}
    file.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
