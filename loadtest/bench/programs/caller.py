"""A process of callers: each line on stdin is a run, each line on stdout what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadtest.bench.processor import Used, threads_s
from loadtest.bench.setting import texts
from loadtest.kit import grpc, openai
from loadtest.kit.grpc import GrpcRun
from loadtest.kit.openai import OpenAIRun
from loadtest.kit.tally import Tally
from loadtest.stack.instant_modelserver import MODEL


def called(told: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a part of `count` questions of `target`, `callers` at a time or when they are due, from time `at` on."""
    part, parts = told["part"]
    inputs = told["inputs"] or texts(told["count"])[part::parts]
    tally = Tally(np.arange(len(inputs), dtype=np.int64), keep_embeddings=False)
    how = {"concurrency": told["callers"], "per_call": told["per_call"], "due_s": told["due_s"]}
    while time.time() < told["at"]:
        time.sleep(0.001)
    before, began = threads_s(os.getpid()), time.time()
    if told["http"]:
        asyncio.run(openai.run(inputs, tally, OpenAIRun(told["target"], MODEL, **how)))
    else:
        asyncio.run(grpc.run(inputs, tally, GrpcRun(told["target"], stream=told["stream"], **how), lambda: None))
    ended, summary = time.time(), tally.summary()
    used = Used.between(before, threads_s(os.getpid()), ended - began)
    return {
        "answered": summary.replies, "failed": summary.lost + sum(summary.errors.values()), "errors": summary.errors,
        "latency_s": tally.latencies_s.round(6).tolist(), "began": began, "ended": ended,
        "cores": used.cores, "busiest": used.busiest,
    }  # fmt: skip


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(called(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
