"""docs/metrics.md lists every metric that the code has, as the code has it, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
PROCESSES = {"Aggregator": "aggregator", "Model server": "modelserver", "Scaler": "aggregator/wings/scaler"}


def rows_of(folder: str) -> Iterator[str]:
    """The row that each instrument below a folder is to have; a process inside another's folder has rows of its own."""
    inner = [ROOT / other for other in PROCESSES.values() if other.startswith(f"{folder}/")]
    for file in sorted((ROOT / folder).rglob("*.py")):
        if any(file.is_relative_to(each) for each in inner):
            continue
        tree = ast.parse(file.read_text())
        tuples = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if isinstance(node.func, ast.Name) and node.func.id == "Instrument":
                kind, labels = "gauge", node.args[3:]
            elif isinstance(node.func, ast.Attribute) and node.func.attr in {"counter", "histogram"}:
                kind = node.func.attr
                labels = node.args[4 if kind == "histogram" else 3 :]
            else:
                continue
            name, unit, description = (ast.literal_eval(argument) for argument in node.args[:3])
            found = ", ".join(key for label in labels for key in keys(label, tuples))
            yield f"| `{name}` | {kind} | {unit} | {found} | {description} |"


def keys(node: ast.expr, tuples: dict[str, ast.Tuple]) -> list[str]:
    """The attributes that an expression names, by the tuples assigned in its file."""
    if isinstance(node, ast.Name):
        return keys(tuples[node.id], tuples)
    if isinstance(node, ast.Tuple):
        return [key for element in node.elts for key in keys(element, tuples)]
    if isinstance(node, ast.Starred):
        return keys(node.value, tuples)
    return [str(ast.literal_eval(node))]


def listed(title: str) -> list[str]:
    """The rows below a heading."""
    _, _, rest = PAGE.read_text().partition(f"\n## {title}\n")
    return re.findall(r"^\| `.*\|$", rest.partition("\n## ")[0], re.MULTILINE)


def test_every_metric_of_ours_begins_with_tokenbatch() -> None:
    """Others follow OpenTelemetry's conventions, and have their names."""
    names = {row.split("`")[1] for folder in PROCESSES.values() for row in rows_of(folder)}
    others = {name for name in names if not name.startswith("tokenbatch.")}
    assert {name.split(".")[0] for name in others} == {"gen_ai", "http", "rpc"}


@pytest.mark.parametrize("title", PROCESSES)
def test_every_metric_is_listed_as_it_is(title: str) -> None:
    assert listed(title) == sorted(rows_of(PROCESSES[title]))
