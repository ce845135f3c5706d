"""The engine that the settings name is built, or the start fails with what to do."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest

from modelserver import model_files
from modelserver.engines.choice import Alternative, Choice, EngineWings, build
from modelserver.engines.engine import StepThreads, Task
from modelserver.errors import CannotStart
from modelserver.settings import EngineSettings, ModelServerSettings
from modelserver.startup import warm_up
from tests.support.shifted_engine import FACTS, Shifted


def test_a_step_too_large_for_the_memory_stops_the_start_with_what_to_do() -> None:
    with pytest.raises(CannotStart, match="ENGINE__STEP_TOKENS"):
        warm_up(Shifted(raises=True))


@pytest.mark.parametrize(
    ("kind", "on_cpu", "causal", "tried"),
    [
        ("auto", True, True, True),
        ("auto", False, False, True),
        ("auto", False, True, False),
        ("direct", False, True, True),
        ("core", True, False, False),
    ],
)
def test_an_alternative_is_tried_but_for_causal_models_on_a_gpu(
    kind: Literal["auto", "direct", "core"], on_cpu: bool, causal: bool, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = StepThreads(2, lambda _: None)
    core, direct = Shifted(facts=replace(FACTS, on_cpu=on_cpu), threads=threads), Shifted()
    alternatives: dict[str, Alternative] = {"direct": lambda *_: Choice(direct)}

    def options(**_values: object) -> None: ...

    module = SimpleNamespace(LoadOptions=options, load=lambda _: core)
    monkeypatch.setitem(sys.modules, "modelserver.engines.core", module)
    settings = ModelServerSettings(engine=EngineSettings(kind=kind))
    files = replace(model_files.read(model_files.locate("", ""), ""), is_causal=causal)
    choice = build(settings, files, Task.EMBED, EngineWings(alternatives))
    assert choice.engine is (direct if tried else core)
    assert choice.fallback == ""
    assert choice.threads is (threads if on_cpu else None), "a GPU's steps do not depend on the threads"


def test_an_alternative_that_fails_leaves_vllms_way_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Shifted()

    def options(**_values: object) -> None: ...

    module = SimpleNamespace(LoadOptions=options, load=lambda _: core)
    monkeypatch.setitem(sys.modules, "modelserver.engines.core", module)
    files = model_files.read(model_files.locate("", ""), "")
    alternatives: dict[str, Alternative] = {"direct": lambda core, *_: Choice(core, "it disagrees")}
    choice = build(ModelServerSettings(), files, Task.EMBED, EngineWings(alternatives))
    assert (choice.engine, choice.fallback) == (core, "it disagrees")
    named = ModelServerSettings(engine=EngineSettings(kind="direct"))
    with pytest.raises(CannotStart, match=r"engine\.kind is direct, but it disagrees"):
        build(named, files, Task.EMBED, EngineWings(alternatives))
    with pytest.raises(CannotStart, match=r"engine\.kind is direct, which this build does not have"):
        build(named, files, Task.EMBED, EngineWings())


def test_an_error_of_the_system_at_load_is_told_with_where_it_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    def options(**_values: object) -> None: ...

    monkeypatch.setitem(sys.modules, "modelserver.engines.core", SimpleNamespace(LoadOptions=options, load=load))
    files = model_files.read(model_files.locate("", ""), "")
    with pytest.raises(CannotStart, match=r"Permission denied \(raised by load in .*test_choice\.py, line \d+\)"):
        build(ModelServerSettings(), files, Task.EMBED, EngineWings())
