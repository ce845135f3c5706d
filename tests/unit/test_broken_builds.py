"""Every broken build still fits the code that it breaks, and names tests that exist."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.broken import tests_run
from tests.broken.build import Build, NoMatch
from tests.broken.builds import BUILDS
from tests.broken.tree import ROOT, broken

PER_BUILD = pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)


@PER_BUILD
def test_its_fault_fits_the_code_in_one_place_and_leaves_it_python(build: Build) -> None:
    ast.parse(build.broken((ROOT / build.file).read_text()))


@PER_BUILD
def test_its_tests_are_there(build: Build) -> None:
    assert build.tests
    for test in build.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_each_has_a_name_of_its_own() -> None:
    assert len({build.name for build in BUILDS}) == len(BUILDS)


def test_each_stands_in_the_docs_with_the_tests_that_caught_it() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for build in BUILDS:
        assert f"| {build.name} | {build.rule} | {', '.join(f'`{test}`' for test in build.tests)} |" in page


def a_build(old: str) -> Build:
    return Build("x", "a rule", "code.py", old, "broken\n", ("tests/test_x.py::test_x",))


@pytest.mark.parametrize("old", ["missing\n", "twice\n", "broken\n"])
def test_a_fault_that_does_not_fit_is_told(old: str) -> None:
    with pytest.raises(NoMatch, match=r"x: the text to replace stands \d times in code.py"):
        a_build(old).broken("once\ntwice\ntwice\nbroken\n")


def test_a_tree_is_sound_again_afterwards(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("once\n")
    with broken(tmp_path, a_build("once\n")):
        assert (tmp_path / "code.py").read_text() == "broken\n"
    assert (tmp_path / "code.py").read_text() == "once\n"


def tree_with(folder: Path, code: str) -> Path:
    tree = folder / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "tests" / "test_x.py").write_text(code)
    return tree


TESTS = """
import pytest
@pytest.mark.parametrize("case", [1, 2])
def test_one_of_two_fails(case): assert case == 1
def test_passes(): pass
@pytest.fixture
def spoilt(): raise ValueError
def test_cannot_begin(spoilt): pass
def test_is_skipped(): pytest.skip()
"""


def of(*names: str) -> Sequence[str]:
    return [f"tests/test_x.py::{name}" for name in names]


def test_a_test_failed_when_one_of_its_cases_did(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, TESTS)
    asked = of("test_one_of_two_fails", "test_one_of_two_fails[1]", "test_passes")
    assert tests_run.failed_of(asked, tree) == of("test_one_of_two_fails")


@pytest.mark.parametrize("names", [("test_cannot_begin", "test_is_skipped"), ("test_that_is_not_there",)])
def test_one_that_was_not_run_to_its_end_says_nothing(tmp_path: Path, names: Sequence[str]) -> None:
    with pytest.raises(ChildProcessError, match=".*, .*".join(names)):
        tests_run.failed_of(of(*names), tree_with(tmp_path, TESTS))
