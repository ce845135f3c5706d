"""Fuzz a target for so long, and keep what was learned and found."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target

_CORPUS = Path(__file__).parent / "corpus"
_SLOWEST_INPUT_S = 5
_MOST_MEMORY_MB = 1024
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)
_FINDINGS = ("crash-*", "timeout-*", "oom-*", "leak-*")


@dataclass(frozen=True, slots=True)
class Result:
    """What one campaign did; `findings` are the inputs that broke something."""

    executions: int
    executions_per_s: int
    peak_memory_mb: int
    findings: Sequence[Path]
    log: Path


def corpus(name: str) -> Sequence[bytes]:
    """The inputs that a search of a target starts from, one a line, as Python writes bytes."""
    return [ast.literal_eval(line) for line in (_CORPUS / f"{name}.txt").read_text().splitlines()]


def keep(target: Target, found: Path) -> None:
    """Add to the corpus the fewest inputs of a folder that reach all that the folder reaches."""
    with tempfile.TemporaryDirectory() as kept:
        _write(corpus(target.name), Path(kept))
        command = (sys.executable, "-m", "tests.fuzz.child", target.name, "-merge=1", kept, str(found))
        subprocess.run(command, check=True, capture_output=True)
        inputs = sorted((file.read_bytes() for file in Path(kept).iterdir()), key=lambda data: (len(data), data))
    (_CORPUS / f"{target.name}.txt").write_text("".join(f"{data!r}\n" for data in inputs))


def _write(inputs: Iterable[bytes], folder: Path) -> None:
    for data in inputs:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


def fuzz(target: Target, inputs: Iterable[bytes], folder: Path, seconds: float, *, seed: int = 0) -> Result:
    """Fuzz in `folder`, which keeps what was learned from one campaign to the next; `seed` 0 is another each time.

    Raises ChildProcessError when the fuzzer itself fails.
    """
    learned, findings = folder / "corpus", folder / "findings"
    learned.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    _write(inputs, learned)
    options = (
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={_SLOWEST_INPUT_S}",
        f"-rss_limit_mb={_MOST_MEMORY_MB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    )
    log = folder / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.fuzz.child", target.name, *options, str(learned)]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    found = [file for pattern in _FINDINGS for file in sorted(findings.glob(pattern))]
    told = {name: int(number) for name, number in _STATISTIC.findall(log.read_text(errors="replace"))}
    if (ended.returncode and not found) or not told:
        raise ChildProcessError(f"the fuzzer failed with {ended.returncode}: see {log}")
    return Result(told["number_of_executed_units"], told["average_exec_per_sec"], told["peak_rss_mb"], found, log)
