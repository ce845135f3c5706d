"""Every program in docs/clients.md builds and does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.stack.addresses import USUAL
from loadtest.stack.part import python_of
from loadtest.stack.service import DEFAULT_MODEL_NAME
from loadtest.stack.stack import REDIS_PORT
from loadtest.texts.minilm_ranker import ALIAS
from loadtest.texts.smollm2 import NAME as GENERATING
from tests.clients.conftest import RANKING, Stack
from tests.clients.snippets import EXPORTS, ROOT, TOOLS, read

PAGE = read()
PROGRAMS = [(language, commands) for language, commands in PAGE.commands if language not in {EXPORTS, TOOLS}]
BY_GRPC = ["vectors: 2 dimensions: 384", "streamed: 100"]
BY_BROKER = ["replies: 100 dimensions: 384"]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each language, and a `protoc`, which is the one of grpcio-tools."""
    folder = tmp_path_factory.mktemp("workshop")
    for language in ("python", "go", "java", "openai", "node", "spring", "curl"):
        PAGE.write(language, folder / language)
    protoc = folder / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    return folder


def run(commands: str, folder: Path, stack: Stack) -> list[str]:
    """Run a block of commands as a reader would; returns the lines printed."""
    python = python_of("clients") if folder.name == "openai" else Path(sys.executable)
    environment = {
        **os.environ,
        "EMBED_TARGET": stack.grpc,
        "HTTP_TARGET": stack.http,
        "KAFKA_BOOTSTRAP": stack.kafka,
        "REDIS_SERVER": stack.redis,
        "MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it runs for seconds only
        "PATH": os.pathsep.join((str(python.parent), str(folder.parent), os.environ["PATH"])),
    }
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (_COLOURS.sub("", line) for line in done.stdout.splitlines())  # Maven's, which it leaves on
    return [line for line in lines if line]


@pytest.mark.timeout(600)  # compilers, and what they download the first time
@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=lambda number: f"{PROGRAMS[number][0]}-{number}")
def test_a_program_builds_and_does_what_it_says(number: int, workshop: Path, stack: Stack) -> None:
    language, commands = PROGRAMS[number]
    printed = run(commands, workshop / language, stack)
    if "retrieve" in commands:
        assert printed[-1] == "loops: 3"
        assert len(printed) == 4
    elif "chat" in commands:
        assert printed[-1] == "tokens: 20"
    elif "/v1/rerank" in commands:
        (best,) = json.loads(printed[0])["results"]
        assert set(best) >= {"index", "relevance_score"}
    elif "curl" in commands:
        answer = json.loads(printed[0])
        assert {len(each["embedding"]) for each in answer["data"]} == {384}
    elif language in {"openai", "node", "spring"}:
        assert printed == BY_GRPC[:1]
    elif re.search(r"rank\.py|\./rank|=Rank", commands):
        assert printed[-1] == "ranked: 2"
        assert len(printed) == 3
    elif "generate" in commands.lower():
        assert printed[-1] == "tokens: 20"
        assert len("".join(printed[:-1])) > 20, "the text itself"
    else:
        assert printed == (BY_BROKER if re.search("kafka|redis", commands.lower()) else BY_GRPC)


def test_each_language_has_its_programs() -> None:
    assert [language for language, _ in PROGRAMS] == [
        *("openai",) * 4,
        *("node",) * 2,
        "spring",
        *("curl",) * 2,
        *("python",) * 4,
        *("go",) * 3,
        *("java",) * 3,
        "python",
        "java",
        "python",
    ]


def exported() -> dict[str, str]:
    """The variables that the page sets, as a shell in the repository's folder has them."""
    script = "".join(PAGE.of(EXPORTS)) + "env -0"
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)


def test_the_page_and_the_programs_name_the_ports_that_make_up_takes() -> None:
    variables = exported()
    addresses = {"EMBED_TARGET": USUAL.grpc, "HTTP_TARGET": USUAL.http, "KAFKA_BOOTSTRAP": USUAL.kafka}
    addresses["REDIS_SERVER"] = f"localhost:{REDIS_PORT}"
    assert {name: variables[name] for name in addresses} == addresses
    assert (Path(variables["FOLDER"]) / "tokenizer.json").is_file()
    for name, program in PAGE.files.items():
        for variable, address in addresses.items():
            assert variable not in program or f'"{address}"' in program or f"'{address}'" in program, name


def test_the_models_that_programs_name_are_those_that_make_up_serves() -> None:
    served = {DEFAULT_MODEL_NAME, "minilm", GENERATING, RANKING, ALIAS}
    named = re.compile(r'(?:model(?:_name)?["=:]+ ?|MODEL = |Model\(|Model: +|--model )"?([\w.-]+)')
    for text in (*PAGE.files.values(), *(commands for _, commands in PAGE.commands)):
        assert {name for name in named.findall(text) if "-" in name or name == ALIAS} <= served
