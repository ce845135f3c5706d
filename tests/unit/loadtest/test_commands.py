"""The command line of `python -m loadtest`."""

import re

import pytest

from loadtest.__main__ import COMMANDS, main
from loadtest.produce import request_topic


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
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


def test_the_commands_of_users_are_listed_before_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert listed[:5] == ["up", "produce", "embed", "plan", "simulate"]
    assert listed[5:] == ["sweep", "ablate", "generate", "bench", "bench-gpu"]


def test_bulk_goes_to_a_topic_of_its_own() -> None:
    assert [request_topic(priority) for priority in ("", "interactive", "background")] == [
        "embed.requests.v1",
        "embed.requests.v1",
        "embed.background.v1",
    ]
