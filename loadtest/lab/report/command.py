"""`loadtest report`: simulate, and write one page with plots and tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.lab.report.control import CONTROL_SECTIONS
from loadtest.lab.report.load import LOAD_SECTIONS, Effort
from loadtest.lab.report.mixed import MIXED_SECTIONS
from loadtest.lab.report.page import page
from loadtest.options import fail
from loadtest.screen import OUTPUT, bars
from loadtest.section import Section
from loadtest.simulate.simulation import Pool

_SECTIONS = {**LOAD_SECTIONS, **CONTROL_SECTIONS, **MIXED_SECTIONS}
_TITLE = "Batching by tokens, in simulation"
_TEXT = (
    "Every figure comes from a discrete-event simulation in virtual time, in which the aggregator's own core decides. "
    "Unless it says otherwise the pods have a latency curve like that of an A100: 20 ms up to 600 tokens, then linear. "
    "The same seed gives the same page."
)

_TIME = "The whole takes some six minutes of processor time, which all cores share."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _TIME
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few points and short runs, in half a minute")
    parser.add_argument(
        "--only", nargs="+", choices=_SECTIONS, default=list(_SECTIONS), metavar="SECTION",
        help=f"these sections, of {', '.join(_SECTIONS)}; all when absent",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    sections = _sections(options.only, Effort(options.quick, options.seed))
    try:
        options.out.write_text(page(_TITLE, _TEXT, sections), encoding="utf-8")
    except OSError as error:
        return fail("report", error)
    OUTPUT.print(f"{options.out}: {len(sections)} sections", markup=False)
    return 0


def _sections(names: Sequence[str], effort: Effort) -> list[Section]:
    """The sections in turn, each with all cores; two bars show how far it is."""
    sections: list[Section] = []
    with bars() as progress:
        whole = progress.add_task("sections", total=len(names))
        pieces = progress.add_task("simulations", total=None)
        with Pool(noted=lambda done, asked: progress.update(pieces, completed=done, total=asked)) as pool:
            for name in names:
                progress.update(whole, description=name)
                began_s = time.perf_counter()
                sections.append(_SECTIONS[name](effort, pool))
                progress.console.print(f"{name}: {time.perf_counter() - began_s:.0f} s")
                progress.advance(whole)
    return sections
