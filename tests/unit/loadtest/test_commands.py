"""The command line of `python -m loadtest`."""

import re
from pathlib import Path

import pytest

from loadtest.__main__ import COMMANDS, LAB, main


@pytest.mark.parametrize("command", [command.name for command in (*COMMANDS, *LAB)])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: python -m loadtest {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["unknown"], ["produce", "--rate", "0"], ["produce", "--count", "-1"], ["produce", "--client", "no-value"]],
)
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_commands_of_users_are_listed_before_those_of_the_lab(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert listed[:5] == ["up", "produce", "embed", "plan", "simulate"]
    assert listed[5:] == ["bench", "bench-gpu", "sweep", "ablate", "generate"]


def test_what_is_tested_of_the_product_needs_nothing_of_the_lab() -> None:
    tests = Path(__file__).parents[2]
    importing = re.compile(r"^\s*(from|import) loadtest\.lab\b", re.MULTILINE)
    files = [file.relative_to(tests) for file in tests.rglob("*.py") if importing.search(file.read_text("utf-8"))]
    assert files
    assert [str(file) for file in files if file.parts[1] != "loadtest"] == []
