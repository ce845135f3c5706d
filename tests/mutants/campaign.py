"""Have mutmut try every mutant of some files, from where the last time stopped, nearest and fastest tests first."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

import pytest
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.runners.harness import PytestRunner, TestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner, MutantRunner

from tests.mutants import changes

FOLDER = Path("mutants")
_SECONDS = FOLDER / "seconds.json"
_CHANGES = FOLDER / "changes.py.used"
_STATS = FOLDER / "mutmut-stats.json"
_HERE = Path(__file__).parent.relative_to(Path.cwd())


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


class Nearest(PytestRunner):
    """Says what failed before there was any mutant: mutmut shows nothing of what pytest writes."""

    def run_stats(self, *, tests: Iterable[str]) -> int:
        """The exit code of pytest."""
        self._pytest_add_cli_args = [*self._pytest_add_cli_args, "-p", "tests.mutants.reaching"]
        return super().run_stats(tests=tests)


class InSession(TestRunner):
    """Runs tests that are collected already, in the process that was forked for a mutant: pytest starts but once."""

    session: pytest.Session

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """0 if none failed. Those of the mutant's own module come first, fast ones before slow ones."""
        asked = set(tests)
        items = sorted(
            (item for item in self.session.items if item.nodeid in asked), key=lambda item: _rank(item, mutant_name)
        )
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                return pytest.ExitCode.TESTS_FAILED
        return pytest.ExitCode.OK if items else pytest.ExitCode.NO_TESTS_COLLECTED


class CollectedOnce(ForkServerRunner):
    """Forks for each mutant from within a session of pytest."""

    files: Sequence[str] = ()

    def _forkserver_main(self, work_fd: int, result_fd: int) -> None:
        class Session:
            @staticmethod
            def pytest_runtestloop(session: pytest.Session) -> bool:
                InSession.session = session
                gc.freeze()
                serve(work_fd, result_fd)
                return True

        serve = super()._forkserver_main
        self.test_runner_class = InSession
        os.chdir(FOLDER)
        # Of what is never closed mutmut itself leaves some.
        quiet = ("--rootdir=.", "--capture=no", "--tb=no", "-p", "no:unraisableexception")
        asked = (*config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection)
        with Path(os.devnull).open("w") as sys.stdout:
            pytest.main([*quiet, *asked], plugins=[Session()])

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """The exit code of pytest over those of the tests that reach what is asked for."""
        of_files = tuple(f"{file.removesuffix('.py').replace('/', '.')}.x" for file in self.files)
        reached = state().tests_by_mangled_function_name
        of_interest = {test for name, found in reached.items() if name.startswith(of_files) for test in found}
        return super().run_clean_tests([*tests, *of_interest])


def _rank(item: pytest.Item, mutant_name: str | None) -> tuple[bool, float]:
    module = (mutant_name or "").rpartition(".")[0].rpartition(".")[2]
    return module not in item.path.stem, state().duration_by_test.get(item.nodeid, 0.0)


def run(files: Sequence[str], *, processes: int, afresh: bool) -> None:
    """Try what was not tried yet, and once more what survived: the tests may have changed."""
    if afresh or (_CHANGES.exists() and _CHANGES.read_bytes() != Path(changes.__file__).read_bytes()):
        shutil.rmtree(FOLDER, ignore_errors=True)
    _drop_what_is_stale()
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(changes.__file__, _CHANGES)
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
        found = CollectedOnce(max_workers=max_workers, test_runner_class=Nearest, test_runner_args={})
        found.files = files
        return found

    started = time.monotonic(), _cpu_s()
    try:
        with (
            changes.installed(),
            patch.multiple(mutmut, collect_source_file_mutation_data=asked_for, get_mutant_runner=runner),
        ):
            mutmut.cli(["run", "--max-children", str(processes)], standalone_mode=False)
    finally:
        spent = seconds()
        _SECONDS.write_text(json.dumps([spent[0] + time.monotonic() - started[0], spent[1] + _cpu_s() - started[1]]))


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


def seconds() -> tuple[float, float]:
    """What all runs since the last start from nothing took together: of time, and of processor time."""
    took_s, cpu_s = json.loads(_SECONDS.read_text()) if _SECONDS.exists() else (0.0, 0.0)
    return took_s, cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def all_files() -> Sequence[str]:
    """The files whose mutants are tried, as pyproject.toml names them."""
    return sorted(str(path) for path in walk_mutatable_files())


def _is_killed(exit_code: int | None) -> bool | None:
    status = status_by_exit_code[exit_code]
    if status in {"not checked", "check was interrupted by user"}:
        return None
    return status in {"killed", "timeout", "segfault"}


def _drop_what_is_stale() -> None:
    """The copied tests; what the tests reach that changed since; and the verdict on every survivor."""
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)
    if _STATS.exists():
        _drop_what_changed_tests_reach()
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        if not data.meta_path.exists():  # it was copied before it was one of them
            (FOLDER / path).unlink(missing_ok=True)
        if data.exit_code_by_key:
            data.exit_code_by_key = {
                mutant: code if _is_killed(code) else None for mutant, code in data.exit_code_by_key.items()
            }
            data.save()


def _drop_what_changed_tests_reach() -> None:
    """All of it, where something changed that tests share; mutmut finds out again what is missing."""
    since = _STATS.stat().st_mtime
    changed = {str(file) for file in Path("tests").rglob("*.py") if file.stat().st_mtime > since}
    if any(not Path(file).name.startswith("test_") for file in changed if not Path(file).is_relative_to(_HERE)):
        _STATS.unlink()
        return
    stats = json.loads(_STATS.read_text())
    reached: dict[str, list[str]] = stats["tests_by_mangled_function_name"]
    stats["duration_by_test"] = {
        test: seconds for test, seconds in stats["duration_by_test"].items() if _file_of(test) not in changed
    }
    for name, tests in reached.items():
        reached[name] = [test for test in tests if _file_of(test) not in changed]
    _STATS.write_text(json.dumps(stats))


def _file_of(test: str) -> str:
    return test.partition("::")[0]
