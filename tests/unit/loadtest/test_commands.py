"""The command line of `python -m loadtest`."""

import argparse
import re

import numpy as np
import pytest

from loadtest.__main__ import COMMANDS, main
from loadtest.kit.tally import Tally
from loadtest.options import add_input_options, add_output_options, finish, request_options
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


LISTED = [
    ("up", "loadtest.up.command"),
    ("produce", "loadtest.produce"),
    ("embed", "loadtest.embed"),
    ("plan", "loadtest.plan.command"),
    ("simulate", "loadtest.simulate.command"),
    ("sweep", "loadtest.simulate.sweep"),
    ("ablate", "loadtest.simulate.ablation"),
    ("generate", "loadtest.simulate.generation.command"),
    ("bench", "loadtest.bench.run"),
    ("bench-gpu", "loadtest.bench.gpu.command"),
]


def test_the_commands_of_users_are_listed_before_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert listed == [name for name, _ in LISTED]
    assert [(command.name, command.module) for command in COMMANDS] == LISTED


@pytest.mark.parametrize(
    ("arguments", "said", "sent"),
    [([], "queries", {}), (["--input-type", "document"], "documents", {"input_type": "document"})],
)
def test_documents_are_sent_and_counted_as_documents(
    arguments: list[str], said: str, sent: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_input_options(parser)
    add_output_options(parser)
    given = parser.parse_args(arguments)
    assert request_options(given) == sent
    finish("Through Kafka", Tally(np.zeros(0, np.int64)), given)
    shown = capsys.readouterr().out
    assert f"{said} sent" in shown
    assert f"{said}/s" in shown


def test_bulk_goes_to_a_topic_of_its_own() -> None:
    assert [request_topic(priority) for priority in ("", "interactive", "background")] == [
        "embed.requests.v1",
        "embed.requests.v1",
        "embed.background.v1",
    ]
