"""Build the engine that the settings name; choose between the two vLLM engines by a self-check."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from modelserver.engines.engine import Engine, EngineFacts, Generator, Task
from modelserver.engines.self_check import compare
from modelserver.engines.synthetic import Poison, SyntheticEngine, synthetic_facts
from modelserver.engines.synthetic_generator import SyntheticGenerator
from modelserver.errors import CannotStart, ModelServerError
from modelserver.model_files import ModelFiles
from modelserver.settings import ModelServerSettings

if TYPE_CHECKING:
    from modelserver.engines.core import LoadOptions

L = TypeVar("L")

_log = logging.getLogger(__name__)

_MEMORY_SHARE = 0.8
"""Of the GPU's memory for vLLM, unless `engine.vllm_options` say otherwise: other processes need some as well."""
_SYNTHETIC_STEP_TOKENS = 8192
_SYNTHETIC_SEQUENCES = 256
_SYNTHETIC_KV_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to serve with; `fallback`: why it is not the direct one, or empty."""

    engine: Engine
    fallback: str = ""


def build(settings: ModelServerSettings, files: ModelFiles) -> Choice:
    """Load the model on the calling thread. Raises CannotStart."""
    if settings.engine.kind == "synthetic":
        return Choice(_synthetic(settings, files))
    core = _core(settings, files)
    if settings.engine.kind == "core":
        return Choice(core)
    choice = choose(core, lambda: _direct(core))
    if choice.fallback and settings.engine.kind == "direct":
        raise CannotStart(f"engine.kind is direct, but {choice.fallback}")
    return choice


def task_of(settings: ModelServerSettings, files: ModelFiles) -> Task:
    """What the model is served for."""
    if settings.model.task == "auto":
        return Task.GENERATE if files.generates else Task.EMBED
    return Task(settings.model.task)


def build_generator(settings: ModelServerSettings, files: ModelFiles) -> Generator:
    """Load a model that generates on the calling thread. Raises CannotStart."""
    if settings.engine.kind == "synthetic":
        return _synthetic_generator(settings, files)
    from modelserver.engines.vllm_generator import load  # noqa: PLC0415 - loads torch and vLLM

    return _loaded(load, settings, files)


def choose(core: Engine, make_direct: Callable[[], Engine]) -> Choice:
    """The direct engine where it can be made and agrees with the core engine, else the core engine and why."""
    try:
        direct = make_direct()
        agreement = compare(direct, core)
    except Exception as error:  # noqa: BLE001 - private interfaces fail in any way; the general engine remains
        return _fallback(core, f"the direct way fails: {type(error).__name__}: {error}")
    if not agreement.agrees:
        apart = f"{agreement.difference:.2g} where {agreement.tolerance:.2g} is allowed"
        return _fallback(core, f"the direct way disagrees with the general one by {apart}")
    _log.info("the direct way agreed", extra={"difference": agreement.difference, "tolerance": agreement.tolerance})
    return Choice(direct)


def _fallback(core: Engine, reason: str) -> Choice:
    _log.warning("fell back to the general engine", extra={"reason": reason})
    core.recover()
    return Choice(core, reason)


def _core(settings: ModelServerSettings, files: ModelFiles) -> Engine:
    from modelserver.engines.core import load  # noqa: PLC0415 - loads torch and vLLM

    return _loaded(load, settings, files)


def _loaded(load: Callable[[LoadOptions], L], settings: ModelServerSettings, files: ModelFiles) -> L:
    """The model, loaded by vLLM. Raises CannotStart."""
    from modelserver.engines.core import LoadOptions  # noqa: PLC0415 - loaded by now

    engine = settings.engine
    options = LoadOptions(
        model_path=str(files.path),
        dtype=None if engine.dtype == "auto" else engine.dtype,
        model_tokens=files.max_input_tokens,
        max_input_tokens=settings.model.max_input_tokens,
        step_tokens=engine.step_tokens,
        memory_share=_MEMORY_SHARE,
        options=engine.vllm_options,
    )
    try:
        return load(options)
    except ModelServerError:
        raise
    except Exception as error:
        raise CannotStart(f"vLLM cannot load {files.path}: {_described(error)}") from error


def _described(error: Exception) -> str:
    """The error and the place that raised it: errors of the operating system name neither."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (raised by {raised.name} in {raised.filename}, line {raised.lineno})"


def _direct(core: Engine) -> Engine:
    from modelserver.engines.core import CoreEngine  # noqa: PLC0415 - loaded by now
    from modelserver.engines.direct import DirectEngine  # noqa: PLC0415

    assert isinstance(core, CoreEngine), "the direct engine is made from another than the core engine. This is a bug."
    return DirectEngine(core)


def _synthetic(settings: ModelServerSettings, files: ModelFiles) -> Engine:
    synthetic, facts = settings.synthetic, _synthetic_facts(settings, files)
    facts = replace(
        facts,
        dimensions=synthetic.dimensions or files.hidden_size,
        max_input_tokens=min(facts.max_input_tokens, facts.step_token_capacity),
    )
    return SyntheticEngine(facts, synthetic.fixed_s, synthetic.per_token_s, _poison(settings))


def _synthetic_generator(settings: ModelServerSettings, files: ModelFiles) -> Generator:
    synthetic, facts = settings.synthetic, _synthetic_facts(settings, files)
    facts = replace(facts, task=Task.GENERATE, step_query_capacity=_SYNTHETIC_SEQUENCES, kv_tokens=_SYNTHETIC_KV_TOKENS)
    return SyntheticGenerator(facts, synthetic.fixed_s, synthetic.per_token_s, _poison(settings))


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


def _poison(settings: ModelServerSettings) -> Poison | None:
    synthetic = settings.synthetic
    if synthetic.poison_token_id is None:
        return None
    return Poison(synthetic.poison_token_id, synthetic.poison_mode)
