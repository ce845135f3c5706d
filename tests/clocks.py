"""List the unit tests that read a clock, wait or use sockets, each with its reason: `python -m tests.clocks`.

In all others the clocks tell a virtual time (tests/support/no_real_time.py): none depends on the machine's load.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "tests" / "unit"
MOST = 10  # more would be a habit
MARKER = "real_time"
CLOCKS = {"monotonic", "perf_counter", "process_time", "sleep", "thread_time", "time"}


def marked(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and reason of each exception; the reason is empty where there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == MARKER:
            calls = (call for call in ast.walk(tree) if isinstance(call, ast.Call) and call.func is node)
            reasons = (call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant))
            yield node.lineno, str(next(reasons, ""))


def read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each clock, wait and socket."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr.removesuffix("_ns") in CLOCKS:
                yield node.lineno, f"time.{node.attr}"
            elif node.value.id == "socket" and node.attr in {"socket", "create_connection", "create_server"}:
                yield node.lineno, f"socket.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in {"time", "socket"}:
            yield node.lineno, f"from {node.module}"


def main() -> int:
    """1 if there are too many exceptions, one has no reason, or a clock is read without one."""
    exceptions, faults = 0, 0
    for file in sorted(UNIT.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        place, reasons = file.relative_to(ROOT), list(marked(tree))
        for line, reason in reasons:
            exceptions += 1
            faults += not reason
            print(f"{place}:{line}: {reason or 'NO REASON'}")
        if not reasons:
            for line, name in read(tree):
                faults += 1
                print(f"{place}:{line}: {name} WITHOUT A REASON: use a clock of the test, or the marker {MARKER}")
    print(f"{exceptions} exceptions of at most {MOST}")
    return int(faults > 0 or exceptions > MOST)


if __name__ == "__main__":
    sys.exit(main())
