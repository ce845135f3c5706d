"""List each promise with the tests that hold it, and fail for a promise without one: `python -m tests.promises`.

Promises are the rules in promises.toml, the rows of docs/reliability.md, the codes in docs/errors.md and the metrics in
docs/metrics.md. A code or metric is held by the tests that name it, unless promises.toml names one.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TABLES = re.compile(r"`(tests/[\w/.]+\.py::\w+)[^`]*`")


@dataclass(frozen=True, slots=True)
class Promise:
    """`tests` are `path::name`."""

    page: str
    text: str
    tests: tuple[str, ...]


def functions() -> Mapping[str, str]:
    """The source of every test with the constants that it uses, by `path::name`."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        lines, constants = source.splitlines(), dict(re.findall(r"^([A-Z_]+)\b[^\n]* = (.*)$", source, re.MULTILINE))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                text = "\n".join(lines[start - 1 : node.end_lineno])
                used = [value for name, value in constants.items() if re.search(rf"\b{name}\b", text)]
                found[f"{file.relative_to(ROOT)}::{node.name}"] = "\n".join([text, *used])
    return found


def promises(tests: Mapping[str, str]) -> Iterator[Promise]:
    """Every promise."""
    listed = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))
    for rule in listed["rule"]:
        yield Promise("rules", rule["is"], tuple(rule["tests"]))
    yield from _reliability(tests)
    for code in re.findall(r"^\| `([A-Z_]+)` \| \d+ \|", _page("errors.md"), re.MULTILINE):
        yield Promise("errors.md", code, tuple(_naming(tests, rf"\b{code}\b")))
    for metric in re.findall(r"^\| `([\w.]+)` \|", _page("metrics.md"), re.MULTILINE):
        name = re.escape(metric).replace(r"\.", "[._]")
        yield Promise("metrics.md", metric, tuple(listed["metrics"].get(metric) or _naming(tests, rf"\b{name}")))


def _reliability(tests: Mapping[str, str]) -> Iterator[Promise]:
    page = _page("reliability.md")
    outside = page.partition("\n## Tried from outside\n")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| .*\|$", outside, re.MULTILINE)[1:]:
        if not row.startswith("|---"):
            yield Promise("reliability.md, tried from outside", row.split("|")[1].strip(), tuple(_TABLES.findall(row)))
    rows = {title: name for name, text in tests.items() for title in re.findall(r'mark\.row\(\s*"([^"]+)"', text)}
    table = page.partition("<!-- rows: written by `make faults` -->")[2].partition("<!-- end of rows -->")[0]
    for row in table.splitlines()[3:]:
        title = re.sub(r"^\[(.*)\]\(.*\)$", r"\1", row.split("|")[1].strip())
        found = [name for fault, name in rows.items() if title == fault or title.startswith(f"{fault} (")]
        yield Promise("reliability.md, faults", title, tuple(found))


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _naming(tests: Mapping[str, str], pattern: str) -> list[str]:
    return [name for name, text in tests.items() if re.search(pattern, text)]


def main() -> int:
    """1 if a promise has no test, or names one that does not exist."""
    tests = functions()
    bare = 0
    for promise in promises(tests):
        missing = [test for test in promise.tests if test not in tests]
        print(f"{promise.page}: {promise.text}")
        for test in promise.tests[:3]:
            print(f"    {test}" + ("  MISSING" if test in missing else ""))
        if len(promise.tests) > 3:
            print(f"    and {len(promise.tests) - 3} others")
        if missing or not promise.tests:
            bare += 1
            print("    NO TEST" if not promise.tests else "")
    print(f"{bare} promises without a test" if bare else "every promise has a test")
    return int(bare > 0)


if __name__ == "__main__":
    sys.exit(main())
