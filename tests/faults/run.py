"""Run the rows of the fault suite one after the other, and write what came of them into docs/reliability.md.

    python -m tests.faults.run [--again] [--strict] [--short] [WORD ...]

A row that has passed at this commit is not run again, so that a run which was broken off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.rows import FOLDER, Row, current_commit, read_row
from tests.faults.table import write_document

_FOLDER = "tests/faults"
_PASSED, _SKIPPED = "passed", "skipped"


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 when a row failed, or, in a strict run, could not be run."""
    parser = argparse.ArgumentParser(
        prog="tests.faults.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only rows with one of these in their names")
    parser.add_argument("--again", action="store_true", help="run rows that have passed at this commit too")
    parser.add_argument("--short", action="store_true", help="only the rows that every run of all tests takes along")
    parser.add_argument("--strict", action="store_true", help="a row that this machine cannot run fails")
    options = parser.parse_args(arguments)
    tests = _tests(short=options.short)
    chosen = [test for test in tests if not options.words or any(word in test for word in options.words)]
    ended: list[Row] = []
    for number, test in enumerate(chosen, start=1):
        name = test.rpartition("::")[2]
        print(f"[{number}/{len(chosen)}] {name}", end=" ", flush=True)
        ended.append(_run(test, name, again=options.again))
        write_document()
    bad = [row for row in ended if row.outcome != _PASSED and (options.strict or row.outcome != _SKIPPED)]
    skipped = sum(row.outcome == _SKIPPED for row in ended)
    print(f"\n{len(ended) - len(bad)} passed, {len(bad)} failed, {skipped} skipped")
    return int(bool(bad))


def _tests(*, short: bool) -> list[str]:
    """The node ids of all rows; the checker's own tests last."""
    marks = "row and short" if short else "row"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", marks, _FOLDER]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in told.stdout.splitlines() if "::" in line]
    if not found:
        raise SystemExit(f"no rows were found:\n{told.stdout}{told.stderr}")
    return sorted(found, key=lambda test: "test_checker" in test)


def _run(test: str, name: str, *, again: bool) -> Row:
    last = read_row(name)
    if last is not None and last.outcome == _PASSED and last.commit == current_commit() and not again:
        print(f"passed already, at {last.at}")
        return last
    began_s = time.monotonic()
    log = FOLDER / "last.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    row = read_row(name)
    if row is None or row == last:
        raise SystemExit(f"{test} left no result; pytest ended with {code}:\n{log.read_text()}")
    print(f"{row.outcome} after {time.monotonic() - began_s:.0f} s {row.why}".rstrip())
    if row.outcome == "failed":
        print(log.read_text())
    return row


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent.parent)
    sys.exit(main(sys.argv[1:]))
