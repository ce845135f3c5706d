"""Break the code on purpose, a small fault at a time, and see that the tests catch it.

    python -m tests.broken [--list] [--again] [WORD ...]

Each build runs in a copy of the tree, against the tests that must fail of it; a build that was caught at this commit is
not run again, so that a run which was broken off goes on where it stopped. What comes of it is written into
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tests.broken.build import Build
from tests.broken.builds import BUILDS
from tests.broken.results import FOLDER, Result, keep, kept, write_document
from tests.broken.tests_run import failed_of
from tests.broken.tree import ROOT, broken, copy_tree
from tests.faults.rows import current_commit


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 when a build was not caught, or a test fails without any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.broken", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only builds with one of these in their names")
    parser.add_argument("--list", action="store_true", help="say which builds there are, and run none")
    parser.add_argument("--again", action="store_true", help="run builds that were caught at this commit too")
    options = parser.parse_args(arguments)
    chosen = [build for build in BUILDS if not options.words or any(word in build.name for word in options.words)]
    if options.list:
        for build in chosen:
            print(f"{build.name}: {build.rule}\n    {' '.join(build.tests)}")
        return 0
    commit = current_commit()
    left = [build for build in chosen if options.again or not _caught_at(commit, build)]
    print(f"{len(chosen) - len(left)} of {len(chosen)} were caught at {commit} already")
    return _run(left, commit) if left else 0


def _caught_at(commit: str, build: Build) -> bool:
    last = kept(build.name)
    return last is not None and last.caught and last.commit == commit


def _run(builds: Sequence[Build], commit: str) -> int:
    tree = copy_tree(ROOT / FOLDER / "tree")
    tests = sorted({test for build in builds for test in build.tests})
    print(f"running their {len(tests)} tests on sound code", flush=True)
    if unsound := failed_of(tests, tree):
        print(f"these fail without any fault: {', '.join(unsound)}")
        return 1
    survivors = 0
    for number, build in enumerate(builds, start=1):
        print(f"[{number}/{len(builds)}] {build.name}", end=" ", flush=True)
        began_s = time.monotonic()
        with broken(tree, build):
            failed = failed_of(build.tests, tree)
        survived = tuple(test for test in build.tests if test not in failed)
        result = Result(build.name, survived, round(time.monotonic() - began_s, 1), commit)
        keep(result)
        write_document()
        survivors += not result.caught
        print(f"{'caught' if result.caught else 'SURVIVED ' + ' '.join(survived)} after {result.seconds:.0f} s")
    print(f"\n{len(builds) - survivors} caught, {survivors} survived")
    return int(survivors > 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
