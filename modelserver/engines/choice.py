"""Build the engine that the settings name: of vLLM in process, of an alternative over its weights, or synthetic."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from modelserver.engines.engine import CountLaunch, Engine, EngineFacts, Launch, Scoring, StepThreads, Task
from modelserver.engines.model_config import VLLMS_ALONE, OwnClasses
from modelserver.engines.pooling import Modules, ReadLayer, read_modules
from modelserver.engines.rows import rows_of
from modelserver.engines.synthetic import Poison, SyntheticEngine, synthetic_facts
from modelserver.errors import CannotStart, ModelServerError
from modelserver.model_files import ModelFiles
from modelserver.settings import EngineSettings, ModelServerSettings
from modelserver.tokenizer_check import compare_tokenizer, prompt_tokens

if TYPE_CHECKING:
    from modelserver.engines.core import CoreEngine, LoadOptions

L = TypeVar("L")

_LISTED = re.compile(r"(Supported architectures: dict_keys|The available parameters belonging to|\[type=).*")
"""Lists of hundreds of names at the end of vLLM's errors, and what pydantic adds."""
_LONGEST_REASON = 400  # characters: a line in a log and in a status
SCORES = frozenset((Task.RANK, Task.CLASSIFY))
_SYNTHETIC_STEP_TOKENS = 8192  # as of a model on a GPU


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


ScoringOf = Callable[[ModelServerSettings, ModelFiles, Task | None], Scoring]
"""How a model scores that is served for a task (None: the task of its files). Raises CannotStart if it cannot."""


def no_scores(_settings: ModelServerSettings, files: ModelFiles, _task: Task | None) -> Scoring:
    """Without the wing `scores` no model scores. Raises CannotStart."""
    raise CannotStart(f"{files.path} would score, which this build does not: set model.task to embed")


@dataclass(frozen=True, slots=True)
class EngineWings:
    """The parts of engines that wings bring.

    `alternatives`: engines beside vLLM's own way, by the name that `engine.kind` has for them; `auto` tries the first.
    `layers`: the readers of modules after the pooling, by sentence-transformers' classes. `scoring_of`: how a model
    scores. `classes`: of models beside vLLM's.
    """

    alternatives: Mapping[str, Alternative] = field(default_factory=dict[str, Alternative])
    layers: Mapping[str, ReadLayer] = field(default_factory=dict[str, ReadLayer])
    scoring_of: ScoringOf = no_scores
    classes: OwnClasses = VLLMS_ALONE


def uncounted(_launch: Launch) -> None:
    pass


def build(
    settings: ModelServerSettings,
    files: ModelFiles,
    task: Task,
    wings: EngineWings,
    count: CountLaunch = uncounted,
) -> Choice:
    """Load the model on the calling thread for a task that gives one row a query. Raises CannotStart.

    Without an alternative in `wings`, vLLM's own way serves.
    """
    kind, alternatives = settings.engine.kind, wings.alternatives
    if kind == "synthetic":
        return Choice(_synthetic(settings, files, task, wings.scoring_of))
    if kind not in ("auto", "core", *alternatives):
        raise CannotStart(f"engine.kind is {kind}, which this build does not have: set it to auto")
    core = _core(settings, files, task, wings)
    threads = core.threads if core.facts.on_cpu else None
    if kind == "core" or not alternatives or (kind == "auto" and files.is_causal and not core.facts.on_cpu):
        return Choice(core, threads=threads)
    choose = next(iter(alternatives.values())) if kind == "auto" else alternatives[kind]
    choice = choose(core, settings.engine, count)
    if choice.fallback and kind != "auto":
        raise CannotStart(f"engine.kind is {kind}, but {choice.fallback}")
    return replace(choice, threads=threads)


def check(settings: ModelServerSettings, files: ModelFiles, task: Task, wings: EngineWings) -> None:
    """Raises CannotStart for a model that vLLM neither embeds nor scores with; its weights are not loaded."""
    from modelserver.engines.core import check as check_model  # noqa: PLC0415 - loads torch and vLLM

    _pooling(check_model, settings, files, task, wings)


def modules_of(settings: ModelServerSettings, files: ModelFiles, layers: Mapping[str, ReadLayer]) -> Modules | None:
    """The modules after the transformer of a model that only embeds. Raises CannotStart for unknown ones."""
    modules = read_modules(files.path, layers, trusted=runs_code(settings))
    if modules is None or not modules.leaves_prompts_out:
        return modules
    return replace(modules, prompts=prompt_tokens(files))


def runs_code(settings: ModelServerSettings) -> bool:
    """Whether the code that was published with the model is run."""
    return bool(settings.engine.vllm_options.get("trust_remote_code"))


def _core(settings: ModelServerSettings, files: ModelFiles, task: Task, wings: EngineWings) -> CoreEngine:
    from modelserver.engines.core import load  # noqa: PLC0415 - loads torch and vLLM

    return _pooling(load, settings, files, task, wings)


def _pooling(
    load: Callable[[LoadOptions], L],
    settings: ModelServerSettings,
    files: ModelFiles,
    task: Task,
    wings: EngineWings,
) -> L:
    """A model of one task that gives one row a query, loaded by vLLM. Raises CannotStart."""
    if task in SCORES:
        scoring = wings.scoring_of(settings, files, task)
        return loaded(load, settings, files, scoring=scoring, classes=wings.classes)
    if (rows := rows_of(files)) is not None:
        return loaded(load, settings, files, rows.modules, overrides=rows.overrides, classes=wings.classes)
    return loaded(load, settings, files, modules_of(settings, files, wings.layers), classes=wings.classes)


def loaded(
    load: Callable[[LoadOptions], L],
    settings: ModelServerSettings,
    files: ModelFiles,
    modules: Modules | None = None,
    scoring: Scoring | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    classes: OwnClasses = VLLMS_ALONE,
) -> L:
    """The model, loaded by vLLM; `overrides`: entries of config.json to replace. Raises CannotStart."""
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
        gpu_share=engine.gpu_share,
        modules=modules,
        scoring=scoring,
        overrides=overrides or {},
        classes=classes,
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


def _synthetic(settings: ModelServerSettings, files: ModelFiles, task: Task, scoring_of: ScoringOf) -> Engine:
    synthetic, facts = settings.synthetic, facts_of_synthetic(settings, files)
    scoring = scoring_of(settings, files, task) if task in SCORES else None
    facts = replace(
        facts,
        tasks=frozenset((task,)),
        scoring=scoring,
        dimensions=len(scoring.labels) if scoring is not None else synthetic.dimensions or files.hidden_size,
        max_input_tokens=min(facts.max_input_tokens, facts.step_token_capacity),
    )
    time.sleep(synthetic.load_s)
    return SyntheticEngine(
        facts, synthetic.fixed_s, synthetic.per_token_s, poison_of(settings), close_s=synthetic.close_s
    )


def facts_of_synthetic(settings: ModelServerSettings, files: ModelFiles) -> EngineFacts:
    synthetic, step_tokens = settings.synthetic, settings.engine.step_tokens or _SYNTHETIC_STEP_TOKENS
    return synthetic_facts(
        version=f"{synthetic.fixed_s} s + {synthetic.per_token_s} s",  # the profile depends on the speed
        dimensions=0,
        max_input_tokens=settings.model.max_input_tokens or files.max_input_tokens,
        vocabulary_size=files.vocabulary_size,
        step_tokens=step_tokens,
        step_queries=step_tokens,
    )


def poison_of(settings: ModelServerSettings) -> Poison:
    synthetic = settings.synthetic
    return Poison(
        synthetic.poison_token_id,
        synthetic.poison_mode,
        synthetic.poison_above_tokens,
        synthetic.poison_share,
        synthetic.poison_while,
    )
