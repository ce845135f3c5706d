"""Fuzz decoders for as long as asked: each target in turn, from the corpus of the last time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import corpus, fuzz, keep
from tests.fuzz.targets import TARGETS


def main() -> int:
    """1 if there is a finding, of this time or an earlier one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all when none is named")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for each target (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path(".run/fuzz"), metavar="F", help="keeps corpora (%(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="add what was learned to tests/fuzz/corpus")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(TARGETS)):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    broken = 0
    for name in options.targets or TARGETS:
        result = fuzz(TARGETS[name], corpus(name), options.folder / name, options.seconds)
        broken += len(result.findings)
        figures = (
            f"{result.executions:>12,} executions {result.executions_per_s:>8,} per s {result.peak_memory_mb:>5,} MB"
        )
        print(f"{name:24}{figures}  {len(result.findings)} findings", flush=True)
        for file in result.findings:
            print(f"    python -m tests.fuzz.child {name} {file}")
        if options.keep and not result.findings:
            keep(TARGETS[name], options.folder / name / "corpus")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
