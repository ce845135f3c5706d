"""`loadtest report`: simulate, and write one page with plots and tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import track

from loadtest.options import fail
from loadtest.report.control import CONTROL_SECTIONS
from loadtest.report.load import LOAD_SECTIONS, Effort
from loadtest.report.page import page
from loadtest.screen import ERRORS, OUTPUT

_SECTIONS = {**LOAD_SECTIONS, **CONTROL_SECTIONS}
_TITLE = "Batching by tokens, in simulation"
_TEXT = (
    "Every figure comes from a discrete-event simulation in virtual time, in which the aggregator's own core decides. "
    "Unless it says otherwise the pods have a latency curve like that of an A100: 20 ms up to 600 tokens, then linear. "
    "The same seed gives the same page."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few points and short runs, in seconds instead of minutes")
    parser.add_argument(
        "--only", nargs="+", choices=_SECTIONS, default=list(_SECTIONS), metavar="SECTION",
        help=f"these sections, of {', '.join(_SECTIONS)}; all when absent",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    effort = Effort(options.quick, options.seed)
    sections = [_SECTIONS[name](effort) for name in track(options.only, "sections", console=ERRORS, transient=True)]
    try:
        options.out.write_text(page(_TITLE, _TEXT, sections), encoding="utf-8")
    except OSError as error:
        return fail("report", error)
    OUTPUT.print(f"{options.out}: {len(sections)} sections", markup=False)
    return 0
