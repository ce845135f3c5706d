"""Fuzz a target for so long, keep what was learned and found, and say how much of its decoder was reached."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import corpus as corpora
from tests.fuzz.target import Target

SLOWEST_INPUT_S = 5
MOST_MEMORY_MB = 1024
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)
_FINDINGS = ("crash-*", "timeout-*", "oom-*", "leak-*")


@dataclass(frozen=True, slots=True)
class Result:
    """What one campaign did; `findings` are the inputs that broke something."""

    target: str
    executions: int
    executions_per_s: int
    peak_memory_mb: int
    corpus: int
    findings: Sequence[Path]
    log: Path


def fuzz(target: Target, folder: Path, seconds: float, *, seed: int = 0) -> Result:
    """Fuzz in `folder`, which keeps the corpus from one campaign to the next; `seed` 0 is another each time.

    Raises ChildProcessError when the fuzzer itself fails.
    """
    corpus, findings = folder / "corpus", folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    for data in (*target.seeds(), *corpora.read(target.name)):
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    options = (
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={SLOWEST_INPUT_S}",
        f"-rss_limit_mb={MOST_MEMORY_MB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    )
    log = folder / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.fuzz.child", target.name, *options, str(corpus)]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    found = [file for pattern in _FINDINGS for file in sorted(findings.glob(pattern))]
    told = {name: int(number) for name, number in _STATISTIC.findall(log.read_text(errors="replace"))}
    if (ended.returncode and not found) or not told:
        raise ChildProcessError(f"the fuzzer failed with {ended.returncode}: see {log}")
    return Result(
        target=target.name,
        executions=told["number_of_executed_units"],
        executions_per_s=told["average_exec_per_sec"],
        peak_memory_mb=told["peak_rss_mb"],
        corpus=sum(1 for _ in corpus.iterdir()),
        findings=found,
        log=log,
    )


def covered_percent(target: Target, folder: Path) -> float:
    """Share of the statements and branches of the target's sources that its corpus reaches, as coverage.py counts."""
    data, report = folder / "coverage", folder / "coverage.json"
    sources = ",".join(str(path) for path in target.sources)
    tool = (sys.executable, "-m", "coverage")
    replay = ("--branch", f"--include={sources}", "-m", "tests.fuzz.replay", target.name, str(folder / "corpus"))
    with (folder / "replay.log").open("wb") as out:
        for command in (
            (*tool, "run", f"--data-file={data}", *replay),
            (*tool, "json", f"--data-file={data}", f"--include={sources}", "-o", str(report)),
        ):
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True)
    return float(json.loads(report.read_text())["totals"]["percent_covered"])
