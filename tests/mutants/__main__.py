"""Change the code in thousands of small ways, and fail for every change that no fast test notices.

Stop it at any time: it continues where it was. What survived is tried again each time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tests.mutants import campaign, survivors
from tests.mutants.campaign import Verdicts

DOCUMENT = Path("docs/reliability.md")
_LEAST_KILLED = 0.95


def main() -> int:
    """0 if every mutant is killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file or a folder; all that [tool.mutmut] names")
    parser.add_argument("--afresh", action="store_true", help="forget what was found before")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, metavar="N", help="(%(default)s)")
    options = parser.parse_args()
    everything = campaign.all_files()
    files = [file for file in everything if not options.paths or any(_holds(path, file) for path in options.paths)]
    if not files:
        parser.error(f"no mutants are made of {' '.join(options.paths)}; they are made of {' '.join(everything)}")
    campaign.run(files, processes=options.processes, afresh=options.afresh)
    return _judge(campaign.verdicts(files), whole=files == everything)


def _holds(path: str, file: str) -> bool:
    return Path(file).is_relative_to(path.removeprefix("./"))


def _judge(found: Sequence[Verdicts], *, whole: bool) -> int:
    _show(found)
    alive = sorted((survivors.change(mutant, each.file), mutant) for each in found for mutant in each.alive)
    print(*(f"{change}\n# survives: mutmut show '{mutant}'" for change, mutant in alive), sep="\n\n")
    mutants, killed, untried = (
        sum(len(getattr(each, name)) for each in found) for name in ("mutants", "killed", "untried")
    )
    share = killed / mutants if mutants else 1.0
    took_s, cpu_s = campaign.seconds()
    result = (
        f"{mutants:,} mutants: {killed:,} killed ({share:.1%}), {len(alive)} survivors; {took_s / 60:.0f} min,"
        f" {cpu_s / 60:.0f} of processor time; {_commit()}"
    )
    print(f"\n{result}" + (f"; {untried} not tried yet" if untried else ""))
    failed = bool(alive or untried or share < _LEAST_KILLED)
    if whole and not failed:
        _write(result)
    return int(failed)


def _show(found: Sequence[Verdicts]) -> None:
    table = Table(box=SIMPLE)
    table.add_column("file", no_wrap=True)
    for title in ("mutants", "killed", "", "alive", "not tried"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in found:
        count = len(each.mutants)
        shares = f"{len(each.killed) / count:.1%}" if count else ""
        figures = (count, len(each.killed), shares, len(each.alive), len(each.untried))
        table.add_row(each.file, *(str(figure) for figure in figures))
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


def _commit() -> str:
    told = subprocess.run(["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True)
    return told.stdout.strip()


def _write(result: str) -> None:
    """Put the result of a whole run where it is looked for."""
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(re.sub(r"(?<=<!-- written by `make mutate` -->\n).*\n", f"{result}.\n", text))


if __name__ == "__main__":
    sys.exit(main())
