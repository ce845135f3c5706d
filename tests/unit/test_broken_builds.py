"""Every broken build still fits the code that it breaks."""

from __future__ import annotations

import ast

import pytest

from tests.broken.builds import BUILDS, Build
from tests.broken.tree import ROOT

PER_BUILD = pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)


@PER_BUILD
def test_its_fault_fits_the_code_in_one_place_and_leaves_it_python(build: Build) -> None:
    ast.parse(build.broken((ROOT / build.file).read_text()))


def test_each_stands_in_the_docs_with_the_tests_that_caught_it() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for build in BUILDS:
        assert f"| {build.name} | {build.rule} | {', '.join(f'`{test}`' for test in build.tests)} |" in page
