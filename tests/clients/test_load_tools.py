"""The load tools that others measure servers with, as their users run them: every request succeeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.stack.part import python_of
from tests.clients.conftest import RANKING, Stack
from tests.clients.test_openai import MODEL
from tests.support.listening import MODEL_FOLDER

REQUESTS = 40
VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` itself, whose command looks for a package called vllm: the build for CPUs has another name."""

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_vllm(stack: Stack, folder: Path, *options: str) -> dict[str, Any]:
    where = ("--base-url", f"http://{stack.http}", "--tokenizer", str(MODEL_FOLDER))
    how = ("--num-prompts", str(REQUESTS), "--max-concurrency", "8", "--disable-tqdm")
    saved = ("--save-result", "--result-filename", "figures.json")
    run(sys.executable, "-c", VLLM, *where, *how, *saved, *options, folder=folder)
    return dict(json.loads((folder / "figures.json").read_text()))


def by_aiperf(stack: Stack, folder: Path, *options: str) -> dict[str, Any]:
    where = ("--url", f"http://{stack.http}", "--tokenizer", str(MODEL_FOLDER))
    how = ("--request-count", str(REQUESTS), "--concurrency", "4", "--ui", "none", "--artifact-dir", str(folder))
    run(python_of("tools").parent / "aiperf", "profile", *where, *how, *options, folder=folder)
    return dict(json.loads((folder / "profile_export_aiperf.json").read_text()))


def test_vllm_s_benchmark_embeds(stack: Stack, tmp_path: Path) -> None:
    texts = ("--dataset-name", "random", "--random-input-len", "20")
    api = ("--backend", "openai-embeddings", "--endpoint", "/v1/embeddings", "--model", MODEL)
    figures = by_vllm(stack, tmp_path, *api, *texts)
    assert figures["completed"] == REQUESTS
    assert figures["total_input_tokens"] >= 20 * REQUESTS


def test_vllm_s_benchmark_ranks(stack: Stack, tmp_path: Path) -> None:
    texts = ("--dataset-name", "random-rerank", "--random-input-len", "40", "--random-batch-size", "4")
    api = ("--backend", "vllm-rerank", "--endpoint", "/v1/rerank", "--model", RANKING)
    figures = by_vllm(stack, tmp_path, *api, *texts)
    assert figures["completed"] == REQUESTS // 4


def test_aiperf_embeds(stack: Stack, tmp_path: Path) -> None:
    figures = by_aiperf(stack, tmp_path, "--model", MODEL, "--endpoint-type", "embeddings", "--isl", "20")
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures["error_summary"] == []


def test_aiperf_ranks(stack: Stack, tmp_path: Path) -> None:
    lengths = ("--rankings-query-prompt-token-mean", "10", "--rankings-passages-prompt-token-mean", "20")
    api = ("--model", RANKING, "--endpoint-type", "cohere-rankings", "--rankings-passages-mean", "5")
    figures = by_aiperf(stack, tmp_path, *api, *lengths)
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures["error_summary"] == []


def test_guidellm_embeds(stack: Stack, tmp_path: Path) -> None:
    run(
        *(python_of("tools").parent / "guidellm", "run"),
        *("--backend", f"kind=openai_http,target=http://{stack.http},model={MODEL},request_format=/v1/embeddings"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--data", "kind=synthetic_text,prompt_tokens=20", "--tokenizer", f"kind=hf_auto,model={MODEL_FOLDER}"),
        *("--output", f"kind=json,path={tmp_path / 'figures.json'}", "--disable-console-interactive"),
        folder=tmp_path,
    )
    (benchmark,) = json.loads((tmp_path / "figures.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
