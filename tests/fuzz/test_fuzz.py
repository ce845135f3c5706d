"""Any bytes give what they say or a named error: seeds, chance, and a short coverage-guided search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.broken import TARGETS as BROKEN
from tests.fuzz.campaign import fuzz
from tests.fuzz.target import Target
from tests.fuzz.targets import MIXED, TARGETS

ALL = [pytest.param(target, id=name) for name, target in TARGETS.items()]
_SECONDS = 5.0


@pytest.mark.parametrize("target", ALL)
def test_every_seed_and_finding_is_read_or_refused(target: Target) -> None:
    for seed in target.seeds():
        assert len(seed) <= target.max_bytes
        target.check(seed)


@pytest.mark.parametrize("target", ALL)
def test_what_earlier_searches_found_is_read_or_refused(target: Target) -> None:
    kept = corpus.read(target.name)
    assert kept, "make fuzz ARGS='--keep' keeps some"
    for data in kept:
        assert len(data) <= target.max_bytes
        target.check(data)


@pytest.mark.parametrize("target", ALL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bytes_by_chance_are_read_or_refused(target: Target, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(target.seeds()))
    cut = data.draw(st.integers(0, len(seed)))
    target.check(seed[:cut] + data.draw(st.binary(max_size=40)) + seed[data.draw(st.integers(cut, len(seed))) :])


@pytest.mark.slow
def test_a_search_finds_nothing(tmp_path: Path) -> None:
    result = fuzz(MIXED, tmp_path, _SECONDS, seed=1)
    assert not result.findings, result.log.read_text(errors="replace")[-4000:]
    assert result.executions > 1000


@pytest.mark.slow
def test_a_fault_is_found_kept_and_shown_again(tmp_path: Path) -> None:
    result = fuzz(BROKEN["broken"], tmp_path, 60, seed=1)
    (finding,) = result.findings
    with pytest.raises(AttributeError, match="has no attribute 'keys'"):
        BROKEN["broken"].check(finding.read_bytes())
    assert "has no attribute 'keys'" in result.log.read_text(errors="replace")


@pytest.mark.slow
def test_of_inputs_that_reach_the_same_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "kept")
    found = tmp_path / "found"
    found.mkdir()
    for number, data in enumerate((b"[1, 2]", b"[1, 3]", b"no JSON", b"not JSON either")):
        (found / str(number)).write_bytes(data)
    corpus.keep(BROKEN["broken"], found)
    assert corpus.read("broken") == [b"[1, 2]", b"no JSON"]


def test_a_finding_is_given_again_without_a_fuzzer(tmp_path: Path) -> None:
    (tmp_path / "finding").write_bytes(b"\x08\xff")
    command = [sys.executable, "-m", "tests.fuzz.replay", "kafka_protobuf", str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
