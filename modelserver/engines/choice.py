"""Build the engine that the settings name: of vLLM in process, of an alternative over its weights, or synthetic."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from modelserver.engines.engine import (
    EMBED_AND_GENERATE,
    CountLaunch,
    Engine,
    EngineFacts,
    Generator,
    Launch,
    Scoring,
    StepThreads,
    Task,
)
from modelserver.engines.model_config import read_scoring, synthetic_scoring
from modelserver.engines.pooling import Embedding, Modules, read_embedding, read_modules
from modelserver.engines.synthetic import Poison, SyntheticEngine, SyntheticGenerator, synthetic_facts
from modelserver.errors import CannotStart, ModelServerError
from modelserver.model_files import ModelFiles
from modelserver.settings import EngineSettings, ModelServerSettings
from modelserver.tokenizer_check import compare_tokenizer, prompt_tokens

if TYPE_CHECKING:
    from modelserver.engines.core import CoreEngine, LoadOptions

L = TypeVar("L")

_log = logging.getLogger(__name__)

_LISTED = re.compile(r"(Supported architectures: dict_keys|The available parameters belonging to|\[type=).*")
"""Lists of hundreds of names at the end of vLLM's errors, and what pydantic adds."""
_LONGEST_REASON = 400  # characters: a line in a log and in a status
_SCORES = frozenset((Task.RANK, Task.CLASSIFY))
_SYNTHETIC_STEP_TOKENS = 8192  # as of a model on a GPU
_SYNTHETIC_SEQUENCES = 256
_SYNTHETIC_KV_TOKENS = 1 << 18  # 256 sequences of 1,024 tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to serve with; `fallback`: why the alternative, which was tried, does not serve; or empty.

    `threads`: of its steps, where it computes on a CPU.
    """

    engine: Engine
    fallback: str = ""
    threads: StepThreads | None = None


Alternative = Callable[["CoreEngine", EngineSettings, CountLaunch], Choice]
"""Makes another engine over the weights of a loaded one, and chooses between the two; a wing's (ADR 55)."""


def uncounted(_launch: Launch) -> None:
    pass


def build(
    settings: ModelServerSettings,
    files: ModelFiles,
    alternatives: Mapping[str, Alternative],
    count: CountLaunch = uncounted,
) -> Choice:
    """Load the model on the calling thread. Raises CannotStart.

    `alternatives`: by the name that `engine.kind` has for them; without any, vLLM's own way serves.
    """
    kind = settings.engine.kind
    if kind == "synthetic":
        return Choice(_synthetic(settings, files))
    if kind not in ("auto", "core", *alternatives):
        raise CannotStart(f"engine.kind is {kind}, which this build does not have: set it to auto")
    core = _core(settings, files)
    threads = core.threads if core.facts.on_cpu else None
    if kind == "core" or not alternatives or (kind == "auto" and files.is_causal and not core.facts.on_cpu):
        return Choice(core, threads=threads)
    choose = next(iter(alternatives.values())) if kind == "auto" else alternatives[kind]
    choice = choose(core, settings.engine, count)
    if choice.fallback and kind != "auto":
        raise CannotStart(f"engine.kind is {kind}, but {choice.fallback}")
    return replace(choice, threads=threads)


def tasks_of(settings: ModelServerSettings, files: ModelFiles) -> frozenset[Task]:
    """The tasks that the model serves. Raises CannotStart for settings that contradict each other or the files."""
    match settings.model.task:
        case "both":
            embedding_of(settings, files)
            return EMBED_AND_GENERATE
        case "auto":
            return _tasks_of_files(settings, files)
        case name:
            if settings.model.adapter:
                raise CannotStart(f"model.adapter embeds with task both, and model.task is {name}")
            task = Task(name)
            if task in _SCORES:
                scoring_of(settings, files, task)
            return frozenset((task,))


def task_of_batches(settings: ModelServerSettings, files: ModelFiles) -> Task:
    """The task that gives one row a query; also of a model that is to generate beside it, and cannot in one engine."""
    return min(tasks_of(settings, files) - {Task.GENERATE})


def _tasks_of_files(settings: ModelServerSettings, files: ModelFiles) -> frozenset[Task]:
    if settings.model.adapter:
        embedding_of(settings, files)
        return EMBED_AND_GENERATE
    if files.scores:
        return frozenset((read_scoring(files).task,))
    if files.is_causal and files.embeds and files.has_generation_config:
        try:
            embedding_of(settings, files)
        except CannotStart as error:
            _log.info("the model only embeds", extra={"reason": str(error)})
        else:
            return EMBED_AND_GENERATE
    return frozenset((Task.GENERATE if files.generates else Task.EMBED,))


def scoring_of(settings: ModelServerSettings, files: ModelFiles, task: Task) -> Scoring:
    """How a model scores that is served for this task. Raises CannotStart if it cannot."""
    if settings.engine.kind == "synthetic":
        return synthetic_scoring(files, task)
    if not files.classifies and not (files.is_causal and task is Task.RANK):
        raise CannotStart(
            f"{files.path} has no classifier (…ForSequenceClassification): it cannot {task}; set model.task to auto"
        )
    scoring = read_scoring(files)
    if scoring.task is not task:
        raise CannotStart(
            f"model.task is {task}, and the labels of {files.path} are {', '.join(scoring.labels)}: a model with one"
            f" ranks, with several it classifies; set model.task to {scoring.task}"
        )
    return scoring


def embedding_of(settings: ModelServerSettings, files: ModelFiles) -> Embedding:
    """How a model embeds that also generates. Raises CannotStart if it cannot."""
    if not files.is_causal and settings.engine.kind != "synthetic":
        raise CannotStart(f"{files.path} is not a causal language model: it cannot generate; set model.task to embed")
    return read_embedding(files.path, files.adapter, trusted=_runs_code(settings))


def build_generator(settings: ModelServerSettings, files: ModelFiles, *, embeds: bool = False) -> Generator:
    """Load a model that generates, and `embeds` if so, on the calling thread. Raises CannotStart."""
    if settings.engine.kind == "synthetic":
        return _synthetic_generator(settings, files, embeds=embeds)
    from modelserver.engines.vllm_generator import load  # noqa: PLC0415 - loads torch and vLLM

    embedding = embedding_of(settings, files) if embeds else None
    return _loaded(lambda options: load(options, embedding), settings, files)


def check(settings: ModelServerSettings, files: ModelFiles) -> None:
    """Raises CannotStart for a model that vLLM neither embeds nor scores with; its weights are not loaded."""
    from modelserver.engines.core import check as check_model  # noqa: PLC0415 - loads torch and vLLM

    _pooling(check_model, settings, files)


def modules_of(settings: ModelServerSettings, files: ModelFiles) -> Modules | None:
    """The modules after the transformer of a model that only embeds. Raises CannotStart for unknown ones."""
    modules = read_modules(files.path, trusted=_runs_code(settings))
    if modules is None or not modules.leaves_prompts_out:
        return modules
    return replace(modules, prompts=prompt_tokens(files))


def _runs_code(settings: ModelServerSettings) -> bool:
    return bool(settings.engine.vllm_options.get("trust_remote_code"))


def _core(settings: ModelServerSettings, files: ModelFiles) -> CoreEngine:
    from modelserver.engines.core import load  # noqa: PLC0415 - loads torch and vLLM

    return _pooling(load, settings, files)


def _pooling(load: Callable[[LoadOptions], L], settings: ModelServerSettings, files: ModelFiles) -> L:
    """A model of one task that gives one row a query, loaded by vLLM. Raises CannotStart."""
    task = task_of_batches(settings, files)
    if task in _SCORES:
        return _loaded(load, settings, files, scoring=scoring_of(settings, files, task))
    return _loaded(load, settings, files, modules_of(settings, files))


def _loaded(
    load: Callable[[LoadOptions], L],
    settings: ModelServerSettings,
    files: ModelFiles,
    modules: Modules | None = None,
    scoring: Scoring | None = None,
) -> L:
    """The model, loaded by vLLM. Raises CannotStart."""
    from modelserver.engines.core import LoadOptions  # noqa: PLC0415 - loaded by now

    engine = settings.engine
    compare_tokenizer(files, trust_remote_code=bool(engine.vllm_options.get("trust_remote_code")))
    options = LoadOptions(
        model_path=str(files.path),
        dtype=None if engine.dtype == "auto" else engine.dtype,
        model_tokens=files.max_input_tokens,
        max_input_tokens=settings.model.max_input_tokens,
        step_tokens=engine.step_tokens,
        options=engine.vllm_options,
        graphs=engine.kind != "direct",
        modules=modules,
        scoring=scoring,
    )
    try:
        return load(options)
    except ModelServerError:
        raise
    except Exception as error:
        described = _described(error)
        if "trust_remote_code" in described:
            described += (
                ": to run the model's own code, pin model.revision and set trust_remote_code in engine.vllm_options"
            )
        raise CannotStart(f"vLLM cannot load {files.path}: {described}") from error


def _described(error: Exception) -> str:
    """The error in one line, and the place that raised it: errors of the operating system name neither."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    said = _LISTED.sub("", " ".join(str(error).split()))[:_LONGEST_REASON] or raised.line
    return f"{type(error).__name__}: {said} (raised by {raised.name} in {raised.filename}, line {raised.lineno})"


def _synthetic(settings: ModelServerSettings, files: ModelFiles) -> Engine:
    synthetic, facts = settings.synthetic, _synthetic_facts(settings, files)
    task = task_of_batches(settings, files)
    scoring = scoring_of(settings, files, task) if task in _SCORES else None
    facts = replace(
        facts,
        tasks=frozenset((task,)),
        scoring=scoring,
        dimensions=len(scoring.labels) if scoring is not None else synthetic.dimensions or files.hidden_size,
        max_input_tokens=min(facts.max_input_tokens, facts.step_token_capacity),
    )
    time.sleep(synthetic.load_s)
    return SyntheticEngine(
        facts, synthetic.fixed_s, synthetic.per_token_s, _poison(settings), close_s=synthetic.close_s
    )


def _synthetic_generator(settings: ModelServerSettings, files: ModelFiles, *, embeds: bool) -> Generator:
    synthetic, facts = settings.synthetic, _synthetic_facts(settings, files)
    facts = replace(
        facts,
        tasks=EMBED_AND_GENERATE if embeds else frozenset((Task.GENERATE,)),
        context_tokens=facts.max_input_tokens,
        max_sequences=_SYNTHETIC_SEQUENCES,
        kv_tokens=_SYNTHETIC_KV_TOKENS,
    )
    if embeds:
        longest = min(facts.max_input_tokens - 1, facts.step_token_capacity)
        facts = replace(facts, dimensions=synthetic.dimensions or files.hidden_size, max_input_tokens=longest)
    time.sleep(synthetic.load_s)
    return SyntheticGenerator(
        facts, synthetic.fixed_s, synthetic.per_token_s, _poison(settings), close_s=synthetic.close_s
    )


def _synthetic_facts(settings: ModelServerSettings, files: ModelFiles) -> EngineFacts:
    synthetic, step_tokens = settings.synthetic, settings.engine.step_tokens or _SYNTHETIC_STEP_TOKENS
    return synthetic_facts(
        version=f"{synthetic.fixed_s} s + {synthetic.per_token_s} s",  # the profile depends on the speed
        dimensions=0,
        max_input_tokens=settings.model.max_input_tokens or files.max_input_tokens,
        vocabulary_size=files.vocabulary_size,
        step_tokens=step_tokens,
        step_queries=step_tokens,
    )


def _poison(settings: ModelServerSettings) -> Poison:
    synthetic = settings.synthetic
    return Poison(
        synthetic.poison_token_id,
        synthetic.poison_mode,
        synthetic.poison_above_tokens,
        synthetic.poison_share,
        synthetic.poison_while,
    )
