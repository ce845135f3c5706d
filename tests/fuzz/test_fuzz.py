"""Any bytes give what they say or a named error: the corpus, chance, and a short coverage-guided search."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import corpus, fuzz
from tests.fuzz.target import Target
from tests.fuzz.targets import MIXED, TARGETS

ALL = [pytest.param(target, id=name) for name, target in TARGETS.items()]
_CORPUS = {name: corpus(name) for name in TARGETS}
_SECONDS = 5.0


@pytest.mark.parametrize("target", ALL)
def test_every_input_of_the_corpus_is_read_or_refused(target: Target) -> None:
    for data in _CORPUS[target.name]:
        assert len(data) <= target.max_bytes
        target.check(data)


@pytest.mark.parametrize("target", ALL)
@settings(max_examples=60)
@given(data=st.data())
def test_bytes_by_chance_are_read_or_refused(target: Target, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(_CORPUS[target.name]))
    cut = data.draw(st.integers(0, len(seed)))
    target.check(seed[:cut] + data.draw(st.binary(max_size=40)) + seed[data.draw(st.integers(cut, len(seed))) :])


@pytest.mark.slow
def test_a_search_finds_nothing(tmp_path: Path) -> None:
    inputs = [bytes([number]) + data for number, name in enumerate(TARGETS) for data in _CORPUS[name]]
    result = fuzz(MIXED, inputs, tmp_path, _SECONDS, seed=1)
    assert not result.findings, result.log.read_text(errors="replace")[-4000:]
    assert result.executions > 1000
