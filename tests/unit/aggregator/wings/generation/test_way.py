"""A generation request's way, as docs/architecture.md lists it."""

from __future__ import annotations

from tests.support.architecture_page import ROOT, listed


def test_the_way_is_short_and_each_file_is_there() -> None:
    files = listed("A generation request's way, file by file")
    assert 5 < len(files) <= 8
    assert all((ROOT / file).is_file() for file in files)
