"""Every command of README.md runs as it is printed, against what `make up` serves, and none is left out."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from loadtest.stack.addresses import USUAL, Addresses
from loadtest.stack.service import DEFAULT_MODEL_NAME
from loadtest.up import command as up
from tests.clients.conftest import Stack

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)  # the picture of the parts
BLOCKS = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in _BLOCK.findall(_FENCED.sub("", README))]
INLINE = re.findall(r"`(make [^`]+)`", README)
E2E = {
    "make up": "test_it_embeds_prints_working_commands_and_restarts_on_the_same_data",
    "make up ARGS=--exit": "test_it_embeds_prints_working_commands_and_restarts_on_the_same_data",
    "make up ARGS=--demo": "test_the_demonstration_tells_each_step_and_loses_nothing",
    "make up ARGS=--generate": "test_texts_are_generated_and_the_commands_printed_work",
    "make up ARGS=--mixed": "test_users_retrieve_on_a_mixed_server_and_on_a_split_pair",
    "make up ARGS=--rank": "test_neighbours_are_ranked_and_both_orders_shown",
    "make up ARGS=--redis": "test_redis_is_started_and_its_questions_get_their_vectors",
    'make up ARGS="--redis HOST:PORT"': "test_one_s_own_redis_is_used_and_named",
    'make up ARGS="--kafka broker:9092"': "test_it_embeds_through_ones_own_kafka_and_when_killed_leaves_nothing",
    'make up ARGS="--model-path PATH"': "",
    "make up ARGS=--help": "",
}
"""Commands that start a stack of their own, and the test of tests/e2e/test_make_up.py that does."""


def commands() -> list[str]:
    """Every line of a block that is a command, without its comment."""
    lines = [line for block in BLOCKS if "import" not in block for line in block.splitlines()]
    return [re.sub(r"  +#.*", "", line).strip() for line in lines if line.strip()]


def makes() -> list[str]:
    """Every command of make, in blocks and in sentences."""
    return sorted({each for each in (*commands(), *INLINE) if each.startswith("make ")})


def test_every_command_is_run_here_or_by_the_tests_of_make_up() -> None:
    assert {each for each in makes() if each.startswith("make up")} == set(E2E)
    tests = (ROOT / "tests/e2e/test_make_up.py").read_text(encoding="utf-8")
    assert [name for name in E2E.values() if name and f"def {name}(" not in tests] == []
    others = [each for each in commands() if not each.startswith(("make ", "apt-get "))]
    assert [each for each in others if each not in RUN] == []


@pytest.mark.parametrize("printed", makes())
def test_make_takes_the_targets_and_options_that_are_printed(printed: str) -> None:
    of_make = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")  # of the one that may have started this test
    environment = {name: value for name, value in os.environ.items() if name not in of_make}
    done = subprocess.run(
        ["bash", "-c", f"{printed} --dry-run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    for line in done.stdout.splitlines():
        if " loadtest up" in line and "--help" not in line:
            parser.parse_args(shlex.split(line.partition(" loadtest up")[2]))


@pytest.fixture(scope="module")
def folder(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, in which the stack runs."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".run").mkdir()
    page = f"http://{stack.metrics}/"
    Addresses(stack.kafka, stack.grpc, stack.http, stack.metrics, [stack.modelserver], page).write(folder / ".run")
    return folder


def ran(printed: str, folder: Path, stack: Stack, environment: Mapping[str, str] | None = None) -> str:
    """Run a command as it is printed, but for the stack's ports instead of the usual ones. Returns what it prints."""
    for name in ("grpc", "http", "kafka"):
        printed = printed.replace(asdict(USUAL)[name], getattr(stack, name))
    done = subprocess.run(
        ["bash", "-euc", printed],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RUN = [each for each in commands() if each.startswith((".venv/bin/python -m", "curl ", "printf "))]


def test_the_program_on_top_embeds(folder: Path, stack: Stack) -> None:
    (program,) = [block for block in BLOCKS if "tokenbatch_client" in block]
    assert len([line for line in program.splitlines() if line]) <= 6
    (folder / "first.py").write_text(program.replace(USUAL.grpc, stack.grpc))
    lines = ran(".venv/bin/python first.py", folder, stack).splitlines()
    assert [line.split()[0] for line in lines] == ["384", "384"]


def test_commands_run_as_they_are_printed_one_after_the_other(folder: Path, stack: Stack) -> None:
    settings = {
        "KAFKA__BOOTSTRAP_SERVERS": stack.kafka,
        "MODELS": json.dumps([{"name": DEFAULT_MODEL_NAME, "servers": [stack.modelserver]}]),
        "GRPC__BIND": "127.0.0.1:0",
        "HTTP__BIND": "127.0.0.1:0",
        "TELEMETRY__METRICS_BIND": "127.0.0.1:0",
    }
    environment = {f"TOKENBATCH_AGGREGATOR_{name}": value for name, value in settings.items()}
    for printed in RUN:
        output = ran(printed, folder, stack, environment if "--check" in printed else None)
        if "produce" in printed or "embed " in printed:
            assert re.search(r"replies\W+2\b", output), output
        elif printed.startswith("curl"):
            assert len(json.loads(output)["data"][0]["embedding"]) == 384
    assert {each.name for each in folder.glob("*.npz")} == {"replies.npz", "answers.npz"}
    assert len(RUN) == 7
