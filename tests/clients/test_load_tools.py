"""The load tools that others measure servers with, by the commands of docs/clients.md: every request succeeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.stack.part import python_of
from tests.clients.conftest import Stack
from tests.clients.snippets import TOOLS, read
from tests.support.listening import MODEL_FOLDER

REQUESTS = 200
PAGE = read()

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs of the tools, and a copy of `protos/`."""
    PAGE.write(TOOLS, tmp_path)
    return tmp_path


def run(stack: Stack, folder: Path, tool: str, task: str, options: str = "") -> None:
    """Run the page's one command of this tool for this task, with options that say where its figures go."""
    (command,) = [each for each in PAGE.of(TOOLS) if each.startswith(tool) and task in each]
    tools = (str(Path(sys.executable).parent), str(python_of("tools").parent))
    variables = {"HTTP_TARGET": stack.http, "FOLDER": str(MODEL_FOLDER), "PATH": ":".join((*tools, os.environ["PATH"]))}
    done = subprocess.run(
        ["bash", "-euc", f"{command.rstrip()} {options}"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def by_vllm(stack: Stack, folder: Path, task: str) -> dict[str, Any]:
    run(stack, folder, "python vllm_bench.py", task, "--disable-tqdm --save-result --result-filename figures.json")
    return dict(json.loads((folder / "figures.json").read_text()))


def by_aiperf(stack: Stack, folder: Path, task: str) -> dict[str, Any]:
    run(stack, folder, "aiperf", task, f"--ui none --artifact-dir {folder}")
    return dict(json.loads((folder / "profile_export_aiperf.json").read_text()))


def test_vllm_s_benchmark_embeds(stack: Stack, folder: Path) -> None:
    figures = by_vllm(stack, folder, "openai-embeddings")
    assert figures["completed"] == REQUESTS
    assert figures["total_input_tokens"] >= 20 * REQUESTS


def test_vllm_s_benchmark_ranks(stack: Stack, folder: Path) -> None:
    assert by_vllm(stack, folder, "vllm-rerank")["completed"] == REQUESTS // 4


@pytest.mark.parametrize("task", ["--endpoint-type embeddings", "cohere-rankings"])
def test_aiperf_embeds_and_ranks(task: str, stack: Stack, folder: Path) -> None:
    figures = by_aiperf(stack, folder, task)
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures["error_summary"] == []


def test_guidellm_embeds(stack: Stack, folder: Path) -> None:
    options = f"--output kind=json,path={folder / 'figures.json'} --disable-console-interactive"
    run(stack, folder, "guidellm", "embeddings", options)
    (benchmark,) = json.loads((folder / "figures.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    # guidellm now and then ends before it has sent what its 64 streams do not fill: 192 of 200, all answered
    assert REQUESTS - 64 < totals["successful"] <= REQUESTS
