"""Run the suites and say of each how it ended, how long it took, and why it was left out where it was.

    python -m tests.run [--strict] [--except SUITE,...] [SUITE ...]

In a strict run a suite (or a single test) that is left out is a failure, unless it is bound to absent hardware.

Suites that mostly wait run beside the others, one after another; what they print is shown whole between two others.

Nothing is repeated: a test that fails beside other work on the machine is mended.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.suites import REPORTS, SUITES, Suite

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Of the suites: hundreds of processes import the same code, which Python is to compile once."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one suite ended; a check without tests of its own counts as one. `cpu_s`: of its processes but daemons."""

    suite: str
    outcome: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    why: str = ""


def run_all(suites: Sequence[Suite], *, strict: bool) -> Iterator[Result]:
    """Run suites, those that wait beside the others; a result each, after what the suite printed."""
    waiting = [suite for suite in suites if suite.waits]
    working = [suite for suite in suites if not suite.waits]
    if not working:  # one way is enough, and it may have the terminal
        waiting, working = working, waiting
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside:
        ending = [(suite, beside.submit(_run_to_log, suite, strict=strict)) for suite in waiting]
        try:
            for suite in working:
                print(f"\n=== {suite.name}", flush=True)
                yield run(suite, strict=strict)
                while ending and ending[0][1].done():
                    yield _shown(*ending.pop(0))
            for suite, result in ending:
                yield _shown(suite, result)
        finally:
            beside.shutdown(cancel_futures=True)


def _run_to_log(suite: Suite, *, strict: bool) -> Result:
    suite.log.parent.mkdir(parents=True, exist_ok=True)
    with suite.log.open("wb") as log:
        return run(suite, strict=strict, output=log)


def _shown(suite: Suite, ending: Future[Result]) -> Result:
    """A suite's result, once it ended and its output stands on the terminal."""
    result = ending.result()
    print(f"\n=== {suite.name}\n{suite.log.read_text(errors='replace')}", flush=True)
    return result


def run(suite: Suite, *, strict: bool, output: IO[bytes] | None = None) -> Result:
    """Run one suite's commands, all at the same time; they print to the terminal, or to `output`."""
    for need in suite.needs:
        if why := need.why_absent():
            outcome = FAILED if strict and not need.hardware else LEFT_OUT
            return Result(suite.name, outcome, failed=int(outcome == FAILED), skipped=int(outcome == LEFT_OUT), why=why)
    REPORTS.mkdir(parents=True, exist_ok=True)
    for report in suite.reports:
        report.unlink()
    start = time.monotonic()
    running = [subprocess.Popen(command, stdout=output, stderr=output, env=ENVIRONMENT) for command in suite.commands]
    cpu_s = 0.0
    for process in running:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s += used.ru_utime + used.ru_stime
    broken = [command for command, process in zip(suite.commands, running, strict=True) if process.returncode != 0]
    seconds = time.monotonic() - start
    passed, failed, skipped = _counts(suite.reports) or (len(suite.commands) - len(broken), len(broken), 0)
    why = "; ".join(_named(command) for command in broken)
    if broken and not failed:
        failed, why = 1, f"{why}: a gate behind the tests, such as coverage, or none found"
    if strict and skipped:
        why = why or f"{skipped} tests skipped, which a strict run takes for failures"
        failed, skipped = failed + skipped, 0
    return Result(suite.name, FAILED if failed else PASSED, passed, failed, skipped, seconds, cpu_s, why)


def _counts(reports: Sequence[Path]) -> tuple[int, int, int] | None:
    """Passed, failed and skipped tests of pytest's reports; None where there are none."""
    if not reports:
        return None
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for report in reports:
        for testsuite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314 - our own pytest wrote it
            for name in totals:
                totals[name] += int(testsuite.get(name, 0))
    failed = totals["failures"] + totals["errors"]
    return totals["tests"] - failed - totals["skipped"], failed, totals["skipped"]


def _named(command: Sequence[str]) -> str:
    """A command as a person would look for it: the tool, and what it was told."""
    words = command[2:] if command[1:2] == ("-m",) else (Path(command[0]).name, *command[1:])
    return " ".join(words[:2])


def table(results: Sequence[Result]) -> str:
    """The results, a line each, under a header."""
    rows = [("suite", "result", "passed", "failed", "skipped", "seconds", "of CPU", "why")]
    rows += [
        (
            *(r.suite, r.outcome, str(r.passed), str(r.failed), str(r.skipped)),
            *(f"{r.seconds:.1f}", f"{r.cpu_s:.1f}", r.why),
        )
        for r in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    return "\n".join(
        "  ".join(
            (
                *(cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)),
                *(cell.rjust(width) for cell, width in zip(row[2:7], widths[2:], strict=True)),
                row[7],
            )
        ).rstrip()
        for row in rows
    )


def main(arguments: Sequence[str]) -> int:
    """Run the suites named, or all; 0 if none failed."""
    parser = argparse.ArgumentParser(
        prog="tests.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [suite.name for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one of {', '.join(names)}; all when none is named")
    parser.add_argument("--strict", action="store_true", help="what is left out fails, unless the hardware is absent")
    parser.add_argument(
        "--except", dest="excepted", default="", metavar="SUITE,...", help="suites not to run, as they run elsewhere"
    )
    options = parser.parse_args(arguments)
    excepted = set(filter(None, options.excepted.split(",")))
    if unknown := sorted({*options.suites, *excepted} - set(names)):
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(names)}")

    wanted = set(options.suites or names) - excepted
    chosen = [suite for suite in SUITES if suite.name in wanted]
    results = sorted(run_all(chosen, strict=options.strict), key=lambda result: names.index(result.suite))
    print(f"\n{table(results)}\n")
    totals = [sum(r.passed for r in results), sum(r.failed for r in results), sum(r.skipped for r in results)]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return int(any(r.outcome == FAILED for r in results))


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main(sys.argv[1:]))
