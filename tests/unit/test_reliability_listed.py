"""docs/reliability.md names a test for everything that was tried from outside, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def rows() -> list[str]:
    """The rows of the table below "Tried from outside"."""
    _, _, rest = PAGE.read_text().partition("\n## Tried from outside\n")
    return re.findall(r"^\| .*\|$", rest.partition("\n## ")[0], re.MULTILINE)[1:]


def functions(file: Path) -> set[str]:
    """The names of the functions that a file defines."""
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_of_what_was_tried_from_outside_names_tests_that_exist() -> None:
    for row in rows():
        named = re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", row)
        assert named, f"this row names no test: {row}"
        for path, name in named:
            assert (ROOT / path).is_file(), f"{path} is not there: {row}"
            assert name in functions(ROOT / path), f"{path} has no test {name}: {row}"
