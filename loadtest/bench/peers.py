"""Servers that users run today in the product's place, in versions of their own where they need them.

vLLM's own server, Infinity, llama-cpp-python's server, and sentence-transformers behind FastAPI. All of them have the
same model, and speak OpenAI's embeddings API. vLLM is the version that the model server takes; the others get
environments of their own (`requirements/peers*.txt`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from loadtest.questions import bundled_questions
from loadtest.stack.child import Child
from loadtest.stack.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.part import Part, python_of, responds
from loadtest.stack.ports import free_ports
from loadtest.stack.service import gpu_present

STEP_TOKENS, GPU_STEP_TOKENS = 4096, 16384
BLOCK_SIZE = 32
"""All as the model server chooses them, on a CPU unless the name says GPU."""
_BESIDE_OURS = ("--gpu-memory-utilization", "0.3")
"""Of the GPU's memory, of which the model server has some."""
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
_PATIENT = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"}
"""Seconds; after 5 without work its server hangs up, and on a busy machine also on a caller that has just written."""
_CACHE = {"VLLM_CPU_KVCACHE_SPACE": "2"}
"""GiB; an encoder has no cache, but its server would ask for nearly all memory that there is."""
_QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_EMBEDDINGS = "/v1/embeddings"
_BATCH = 32
_PROGRAMS = Path(__file__).parent / "programs"
_VLLM = (sys.executable, str(_PROGRAMS / "vllm_serve.py"), "serve")
_NO_ACCESS_LOG = "--disable-uvicorn-access-log"
_CALIBRATION = 300
"""Questions: the default of OpenVINO's quantization. The last of the file, which benchmarks ask last."""


class Peer(Part):
    """A server that answers HTTP at `url` once it is ready."""

    def __init__(
        self,
        name: str,
        log_file: Path,
        command: Sequence[str],
        path: str,
        environment: Mapping[str, str] | None = None,
        *,
        health: str = "/health",
    ) -> None:
        """`command` gets --host and --port as well. `health`: the path that answers once it is ready."""
        super().__init__(name, f"Its log is {log_file}.")
        (port,) = free_ports(1)
        self._log_file = log_file
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}{path}"
        self._command = [*command, "--host", "127.0.0.1", "--port", str(port)]
        self._health = health
        self._environment = {**_QUIET, **(environment or {})}

    @override
    def _spawn(self) -> Child:
        self._log_file.unlink(missing_ok=True)
        return Child(self.name, self._command, self._log_file, self._environment)

    @override
    def _answers(self) -> bool:
        return responds(self.address, self._health)


def vllm_stock(folder: Path) -> Peer:
    """The server of vLLM with MiniLM and nothing else said, but that it may not take all of the memory."""
    command = [*_VLLM, str(tokenizer_folder()), "--served-model-name", MODEL, _NO_ACCESS_LOG]
    return Peer("vLLM's server, stock", folder / "vllm_stock.log", command, _EMBEDDINGS, {**_PATIENT, **_CACHE})


def vllm_embeddings(folder: Path, dtype: str, *, priorities: bool = False, several: bool = False) -> Peer:
    """The same with dtype, steps, and on a CPU block size, malloc and threads, as the model server has them.

    `priorities`: calls may name one; a lower number goes first. `several`: as many API servers, and tokenizing threads
    in each, as there are cores.
    """
    steps, cores = (GPU_STEP_TOKENS if gpu_present() else STEP_TOKENS), len(os.sched_getaffinity(0))
    told = [
        *(str(tokenizer_folder()), "--served-model-name", MODEL, "--runner", "pooling", "--dtype", dtype),
        *("--max-num-batched-tokens", str(steps), "--max-num-seqs", str(steps // 3)),
        *(("--scheduling-policy", "priority") if priorities else ()),
        *(("--api-server-count", str(cores), "--renderer-num-workers", str(cores)) if several else ()),
    ]
    return _tuned(folder / f"vllm{'_servers' if several else ''}.log", told, _EMBEDDINGS, cores)


def infinity(folder: Path, dtype: str) -> Peer:
    """Infinity on PyTorch; its other engines want weights in formats of their own."""
    told = [
        *("--model-id", str(tokenizer_folder()), "--served-model-name", MODEL, "--url-prefix", "/v1"),
        *("--engine", "torch", "--device", "cpu", "--dtype", dtype, "--batch-size", str(_BATCH)),
        *("--no-bettertransformer", "--no-compile"),
    ]
    program = str(python_of("peers-infinity").parent / "infinity_emb")
    return Peer("Infinity", folder / "infinity.log", [program, "v2", *told], _EMBEDDINGS)


def fastapi(folder: Path, dtype: str) -> Peer:
    """sentence-transformers behind FastAPI: a batch is as many queries, or as many as come in as many milliseconds."""
    return _fastapi(folder, "peers", "torch", "--dtype", dtype)


def fastapi_onnx(folder: Path) -> Peer:
    """The same by ONNX Runtime in int8; of sentence-transformers the newest version that has it, which is 5."""
    return _fastapi(folder, "peers-onnx", "onnx", "--int8", "onnx", "--kept", str(folder / "minilm_onnx"))


def fastapi_openvino(folder: Path) -> Peer:
    """The same by OpenVINO in int8, weights and activations."""
    texts = folder / "calibration"
    texts.mkdir(parents=True, exist_ok=True)
    questions = bundled_questions()[-_CALIBRATION:]
    (texts / "train.txt").write_text("\n".join(questions), encoding="utf-8")
    kept = ("--kept", str(folder / "minilm_openvino"), "--texts", str(texts))
    return _fastapi(folder, "peers", "openvino", "--int8", "openvino", *kept)


def llama(folder: Path) -> Peer:
    """llama-cpp-python's server in float16, which computes one call after the other."""
    told = ["--folder", str(tokenizer_folder()), "--kept", str(folder / "minilm_llama"), "--model_alias", MODEL]
    command = [str(python_of("peers-llama")), str(_PROGRAMS / "llama_server.py"), *told]
    return Peer("llama-cpp-python", folder / "llama.log", command, _EMBEDDINGS, health="/v1/models")


def tei(folder: Path) -> Peer | None:
    """Text Embeddings Inference, where it is installed: no package registry of Python or Rust has it."""
    program = "text-embeddings-router"
    if not shutil.which(program):
        return None
    return Peer("TEI", folder / "tei.log", [program, "--model-id", str(tokenizer_folder())], _EMBEDDINGS)


def _fastapi(folder: Path, environment: str, name: str, *told: str) -> Peer:
    program = [str(python_of(environment)), str(_PROGRAMS / "fastapi_server.py"), "--model", str(tokenizer_folder())]
    log_file = folder / f"fastapi_{name}.log"
    return Peer(f"sentence-transformers ({name}) behind FastAPI", log_file, [*program, *told], _EMBEDDINGS)


def _tuned(log_file: Path, told: Sequence[str], path: str, threads: int) -> Peer:
    if gpu_present():
        return Peer("vLLM's server", log_file, [*_VLLM, *told, _NO_ACCESS_LOG, *_BESIDE_OURS], path, _PATIENT)
    # By default it keeps one core for its other processes, which is slower on a machine of two; and threads that spin
    # while they wait keep these processes from the cores, for seconds at times.
    compute = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    command = [*_VLLM, *told, _NO_ACCESS_LOG, "--block-size", str(BLOCK_SIZE), "--enforce-eager"]
    return Peer("vLLM's server", log_file, command, path, {**_MALLOC, **_PATIENT, **_CACHE, **compute})
