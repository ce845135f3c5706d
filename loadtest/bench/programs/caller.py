"""A process of callers: each line on stdin is a run, each line on stdout what came of it.

`python -m loadtest.bench.programs.caller NUMBER`: its questions are others than those of other numbers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import numpy as np

from loadtest.bench.processor import Used, threads_s
from loadtest.bench.setting import texts
from loadtest.kit import grpc, openai
from loadtest.kit.grpc import GrpcRun
from loadtest.kit.openai import OpenAIRun
from loadtest.kit.tally import Tally
from loadtest.stack.instant_modelserver import MODEL


def called(number: int, told: dict[str, Any]) -> dict[str, Any]:
    """Ask `count` questions of `target` by `door`, `callers` at a time, `per_call` in each, from time `at` on."""
    questions = [f"{number} {each}" for each in texts(told["count"])]
    tally = Tally(np.arange(len(questions), dtype=np.int64), keep_embeddings=False)
    while time.time() < told["at"]:
        time.sleep(0.001)
    before, began = threads_s(os.getpid()), time.time()
    if told["door"] == "http":
        url = f"http://{told['target']}/v1/embeddings"
        asyncio.run(openai.run(questions, tally, OpenAIRun(url, MODEL, told["callers"], told["per_call"])))
    else:
        run = GrpcRun(told["target"], told["callers"], told["per_call"])
        asyncio.run(grpc.run(questions, tally, run, lambda: None))
    ended, summary = time.time(), tally.summary()
    used = Used.between(before, threads_s(os.getpid()), ended - began)
    return {
        "answered": summary.replies, "failed": summary.lost + sum(summary.errors.values()),
        "p50_s": summary.latency_s.get("p50", 0.0), "p99_s": summary.latency_s.get("p99", 0.0),
        "began": began, "ended": ended, "cores": used.cores, "busiest": used.busiest,
    }  # fmt: skip


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(called(int(sys.argv[1]), json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
