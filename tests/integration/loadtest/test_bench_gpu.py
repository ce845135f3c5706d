"""Benchmarks of real processes; their figures are for a quiet machine and a real model, so none is judged here."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.lab.bench.gpu.command import measured_engines

TEI = """#!{python}
import argparse, base64
from aiohttp import web

async def embed(request):
    inputs = (await request.json())["input"]
    vector = base64.b64encode(bytes(4 * 384)).decode()
    return web.json_response(dict(data=[dict(embedding=vector) for _ in inputs]))

async def health(request):
    return web.Response()

parser = argparse.ArgumentParser()
for name in ("--model-id", "--host", "--port"):
    parser.add_argument(name)
options = parser.parse_args()
app = web.Application()
app.add_routes([web.post("/v1/embeddings", embed), web.get("/health", health)])
web.run_app(app, host=options.host, port=int(options.port))
"""
"""A program of the name and with the interface of Text Embeddings Inference's, for the lines that call it."""


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_the_benchmark_for_gpus_runs_to_its_verdicts_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "text-embeddings-router"
    program.parent.mkdir()
    program.write_text(TEI.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert main(["bench-gpu", "--dry", "--data-dir", str(tmp_path / "bench")]) == 0
    said = capsys.readouterr().out
    assert "1. tiny: " in said
    with (tmp_path / "bench" / "results.csv").open(encoding="utf-8", newline="") as lines:
        figures = {(row["bench"], row["figure"]): float(row["value"]) for row in csv.DictReader(lines)}
    assert figures["gpu-engines", "step_256"] > 0
    for name in ("over_vllm_64", "over_tei_256", "ours_http_bench_serve", "vllm_http_bench_serve"):
        assert figures["gpu", name] > 0
    assert figures["P2", "over_plain"] > 0
    assert figures["P3", "server_throughput"] > 0


def test_the_benchmark_for_gpus_says_what_to_do_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadtest.lab.bench.gpu.command.gpu_present", lambda: False)
    assert main(["bench-gpu", "--data-dir", str(tmp_path)]) == 2
    assert "--dry" in capsys.readouterr().err


def test_what_is_not_begun_in_time_is_left_out(tmp_path: Path) -> None:
    (left_out,) = measured_engines([("large", ("direct",))], tmp_path, until_s=0.0)
    assert "--minutes" in left_out.error
