"""A model's files and an engine, for the tests of the start and of the profile."""

from __future__ import annotations

import pytest

from modelserver import model_files
from modelserver.model_files import ModelFiles
from tests.support.fake_step_engine import FakeStepEngine, facts_of


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.read(model_files.locate("", ""), "r1")


@pytest.fixture
def engine() -> FakeStepEngine:
    engine = FakeStepEngine(facts_of(step_tokens=64, step_queries=64))
    engine.gate.set()
    return engine
