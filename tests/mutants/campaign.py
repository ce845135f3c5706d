"""Have mutmut try every mutant of some files, from where the last time stopped, nearest and fastest tests first."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from mutmut import __main__ as mutmut
from mutmut.mutation.data import SourceFileMutationData
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner, MutantRunner

from tests.mutants import changes

FOLDER = Path("mutants")
_SECONDS = FOLDER / "seconds.json"
_STATS = FOLDER / "mutmut-stats.json"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of one file: which mutants a test killed, which none did, and which were not tried yet."""

    file: str
    killed: tuple[str, ...]
    alive: tuple[str, ...]
    untried: tuple[str, ...]

    @property
    def mutants(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.killed, *self.alive, *self.untried)


class NearestFirst(PytestRunner):
    """Runs the tests of the mutant's own module first, and fast before slow ones: the first that fails is enough."""

    def run_stats(self, *, tests: Iterable[str]) -> int:
        """The exit code of pytest, which says what failed: mutmut keeps that to itself."""
        self._pytest_add_cli_args = [*self._pytest_add_cli_args, "-p", "tests.mutants.failures"]
        return super().run_stats(tests=tests)

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """The exit code of pytest."""
        ranked = sorted(tests, key=lambda test: _rank(test, mutant_name))
        return super().run_tests(mutant_name=mutant_name, tests=ranked)


def _rank(test: str, mutant_name: str | None) -> tuple[bool, float]:
    module = (mutant_name or "").rpartition(".")[0].rpartition(".")[2]
    return module not in test.partition("::")[0], state().duration_by_test.get(test, 0.0)


def run(files: Sequence[str], *, processes: int, afresh: bool) -> None:
    """Try what was not tried yet, and once more what survived: the tests may have changed."""
    if afresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    _drop_what_is_stale()
    collect = mutmut.collect_source_file_mutation_data

    def asked_for(
        *, mutant_names: Sequence[str]
    ) -> tuple[list[tuple[SourceFileMutationData, str, int | None]], dict[str, SourceFileMutationData]]:
        mutants, by_path = collect(mutant_names=[*mutant_names])
        return (
            [mutant for mutant in mutants if str(mutant[0].path) in files],
            {path: data for path, data in by_path.items() if path in files},
        )

    def runner(max_workers: int = 1) -> MutantRunner:
        return ForkServerRunner(max_workers=max_workers, test_runner_class=NearestFirst, test_runner_args={})

    started = time.monotonic()
    try:
        with (
            changes.installed(),
            patch.multiple(mutmut, collect_source_file_mutation_data=asked_for, get_mutant_runner=runner),
        ):
            mutmut.cli(["run", "--max-children", str(processes)], standalone_mode=False)
    finally:
        _SECONDS.write_text(json.dumps(seconds() + time.monotonic() - started))


def verdicts(files: Iterable[str]) -> Sequence[Verdicts]:
    """How things stand, file by file."""
    found: list[Verdicts] = []
    for file in files:
        data = SourceFileMutationData(path=file)
        data.load()
        by_status: Mapping[bool | None, list[str]] = {True: [], False: [], None: []}
        for mutant, exit_code in data.exit_code_by_key.items():
            by_status[_is_killed(exit_code)].append(mutant)
        found.append(Verdicts(file, *(tuple(by_status[killed]) for killed in (True, False, None))))
    return found


def seconds() -> float:
    """What all runs since the last start from nothing took together."""
    return float(json.loads(_SECONDS.read_text())) if _SECONDS.exists() else 0.0


def all_files() -> Sequence[str]:
    """The files whose mutants are tried, as pyproject.toml names them."""
    return sorted(str(path) for path in walk_mutatable_files())


def _is_killed(exit_code: int | None) -> bool | None:
    status = status_by_exit_code[exit_code]
    if status in {"not checked", "check was interrupted by user"}:
        return None
    return status in {"killed", "timeout", "segfault"}


def _drop_what_is_stale() -> None:
    """The copied tests; which test reaches what, if any test changed since; and the verdict on every survivor."""
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)
    if _STATS.exists() and _STATS.stat().st_mtime < max(file.stat().st_mtime for file in Path("tests").rglob("*.py")):
        _STATS.unlink()
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        if data.exit_code_by_key:
            data.exit_code_by_key = {
                mutant: code if _is_killed(code) else None for mutant, code in data.exit_code_by_key.items()
            }
            data.save()
