import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import run as runner
from tests.run import Result, table
from tests.suites import SUITES, Need, Suite

SUCCEEDS = (sys.executable, "-c", "")
FAILS = (sys.executable, "-c", "raise SystemExit(1)")

ABSENT_PART = Need(lambda: "no part")
ABSENT_HARDWARE = Need(lambda: "no hardware", hardware=True)
PRESENT = Need(lambda: None)


def writes(report: str) -> tuple[str, ...]:
    """A command that leaves a pytest report for the suite called x."""
    return (sys.executable, "-c", f"open('.run/tests/x.xml', 'w').write({report!r})")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def run_one(*commands: tuple[str, ...], needs: tuple[Need, ...] = (), strict: bool = False) -> Result:
        return runner.run(Suite("x", commands, needs), strict=strict)

    return run_one


def test_a_suite_passes_when_all_its_commands_do(run: Callable[..., Result]) -> None:
    result = run(SUCCEEDS, SUCCEEDS, needs=(PRESENT,))
    assert (result.outcome, result.passed, result.failed) == ("passed", 2, 0)


def test_a_suite_names_the_command_that_failed(run: Callable[..., Result]) -> None:
    result = run(SUCCEEDS, FAILS)
    assert (result.outcome, result.passed, result.failed) == ("failed", 1, 1)
    assert "-c" in result.why


def test_counts_come_from_the_report(run: Callable[..., Result]) -> None:
    report = '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    result = run(writes(report))
    assert (result.outcome, result.passed, result.failed, result.skipped) == ("failed", 3, 2, 2)


def test_a_gate_behind_passing_tests_fails_the_suite(run: Callable[..., Result]) -> None:
    result = run(writes('<testsuites><testsuite tests="7"/></testsuites>'), FAILS)
    assert (result.outcome, result.passed, result.failed) == ("failed", 7, 1)


def test_an_earlier_report_is_not_counted(run: Callable[..., Result]) -> None:
    run(writes('<testsuites><testsuite tests="7"/></testsuites>'))
    assert run(FAILS).passed == 0


@pytest.mark.parametrize(
    ("need", "strict", "outcome"),
    [
        (ABSENT_PART, False, "left out"),
        (ABSENT_PART, True, "failed"),
        (ABSENT_HARDWARE, False, "left out"),
        (ABSENT_HARDWARE, True, "left out"),
    ],
)
def test_only_absent_hardware_excuses_in_a_strict_run(
    run: Callable[..., Result], need: Need, strict: bool, outcome: str
) -> None:
    result = run(FAILS, needs=(PRESENT, need), strict=strict)
    assert (result.outcome, result.why) == (outcome, need.why_absent())


def test_a_skipped_test_fails_a_strict_run(run: Callable[..., Result]) -> None:
    skips = writes('<testsuites><testsuite tests="2" skipped="1"/></testsuites>')
    assert run(skips).outcome == "passed"
    assert run(skips, strict=True).outcome == "failed"


def python(code: str) -> tuple[tuple[str, ...], ...]:
    return ((sys.executable, "-c", code),)


UNTIL_MET = "import os, time\nwhile not os.path.exists('met'): time.sleep(0.01)"


def test_a_suite_that_waits_runs_beside_the_others_and_its_output_is_shown_whole_when_none_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    waits = Suite("waits", python(f"print('begun', flush=True)\n{UNTIL_MET}\nprint('met'); exit(1)"), waits=True)
    meets = Suite("meets", python("print('one', flush=True)\nopen('met', 'w').close()\nprint('two')"))
    results = {result.suite: result.outcome for result in runner.run_all([waits, meets], strict=True)}
    assert results == {"waits": "failed", "meets": "passed"}
    assert " ".join(capfd.readouterr().out.split()) == "=== meets one two === waits begun met"


def test_suites_that_wait_have_the_terminal_when_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    suites = [Suite(name, python(f"print('of {name}')"), waits=True) for name in ("one", "two")]
    assert [result.outcome for result in runner.run_all(suites, strict=True)] == ["passed", "passed"]
    assert " ".join(capfd.readouterr().out.split()) == "=== one of one === two of two"
    assert not list(Path(".run").rglob("*.log"))


def test_the_table_gives_the_reason_for_what_was_left_out() -> None:
    lines = table(
        [Result("unit", "passed", passed=12, seconds=3.21, cpu_s=2.5), Result("gpu", "left out", why="no NVIDIA GPU")]
    )
    assert [line.split() for line in lines.splitlines()[1:]] == [
        ["unit", "passed", "12", "0", "0", "3.2", "2.5"],
        ["gpu", "left", "out", "0", "0", "0", "0.0", "0.0", "no", "NVIDIA", "GPU"],
    ]


def test_names_of_suites_are_unique() -> None:
    names = [suite.name for suite in SUITES]
    assert len(set(names)) == len(names)
