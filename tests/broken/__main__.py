"""Break the code on purpose, a small fault at a time, and see that the tests catch it.

    python -m tests.broken [--list] [WORD ...]

Each build runs in a copy of the tree, against the tests that must fail of it. Its line goes into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.broken.builds import BUILDS, Build
from tests.broken.tree import ROOT, broken, copy_tree
from tests.faults.rows import current_commit

_TREE = ROOT / ".run/broken/tree"
_DOCUMENT = Path("docs/reliability.md")
_TABLE = re.compile(
    r"(?<=<!-- broken builds: written by `make broken` -->\n).*?(?=<!-- end of broken builds -->)", re.DOTALL
)
_LONGEST_S = 900.0


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 when a build was not caught, or a test fails without any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.broken", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only builds with one of these in their names")
    parser.add_argument("--list", action="store_true", help="say which builds there are, and run none")
    options = parser.parse_args(arguments)
    chosen = [build for build in BUILDS if not options.words or any(word in build.name for word in options.words)]
    if options.list:
        print("\n".join(f"{build.name}: {build.rule}\n    {' '.join(build.tests)}" for build in chosen))
        return 0
    copy_tree(_TREE)
    tests = sorted({test for build in chosen for test in build.tests})
    print(f"running their {len(tests)} tests on sound code", flush=True)
    if "failed" in (told := _run(tests)):
        print(told)
        return 1
    survivors = 0
    for number, build in enumerate(chosen, start=1):
        with broken(_TREE, build):
            caught = all("failed" in _run([test]) for test in build.tests)
        survivors += not caught
        print(f"[{number}/{len(chosen)}] {build.name} {'caught' if caught else 'SURVIVED'}", flush=True)
        _write(build, caught=caught)
    return int(survivors > 0)


def _run(tests: Sequence[str]) -> str:
    """How pytest sums up. Raises ChildProcessError when a test was skipped, or not run: then it says nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
    # Without bytecode, which would be taken for that of a file of the same size and second.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=_TREE, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST_S
    )
    told = done.stdout.rstrip().rpartition("\n")[2]
    if re.search(r"error|skipped", told) or not re.search(r"passed|failed", told):
        raise ChildProcessError(f"not run to their end: {', '.join(tests)}\n{done.stdout}{done.stderr}")
    return told


def _write(build: Build, *, caught: bool) -> None:
    """Put the build's line into the table, in place of an earlier one."""

    def written(found: re.Match[str]) -> str:
        header, ruler, *rows = found[0].splitlines()
        lines = {row.split()[1]: row for row in rows}
        tests = ", ".join(f"`{test}`" for test in build.tests) if caught else "**none**"
        lines[build.name] = f"| {build.name} | {build.rule} | {tests} | {current_commit()} |"
        return "\n".join([header, ruler, *(lines[each.name] for each in BUILDS if each.name in lines), ""])

    _DOCUMENT.write_text(_TABLE.sub(written, _DOCUMENT.read_text()))


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
