"""llama-cpp-python's server for a model's folder, which becomes a GGUF file in float16 at the first start.

With 8-bit weights (Q8_0) its version 0.3.36 crashes on processors with AMX. llama.cpp's program that converts comes
with the source of the package only. This runs in an environment of the peers, so it imports nothing of ours.

    python loadtest/bench/programs/llama_server.py --folder FOLDER --kept FOLDER --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

_CONTEXT = 512
"""Tokens, all that MiniLM takes; also those of a step."""


def converted(model: Path, kept: Path) -> Path:
    """The model's GGUF file, made where it is not there."""
    weights = kept / "model_f16.gguf"
    if not weights.exists():
        kept.mkdir(parents=True, exist_ok=True)
        package = f"llama-cpp-python=={version('llama-cpp-python')}"
        download = ["pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", str(kept), package]
        subprocess.run([sys.executable, "-m", *download], check=True)
        (source,) = kept.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(source) as archive:
            archive.extractall(kept, filter="data")
        program = kept / source.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp" / "convert_hf_to_gguf.py"
        half_made = weights.with_suffix(".part")
        convert = [str(program), str(model), "--outtype", "f16", "--outfile", str(half_made)]
        subprocess.run([sys.executable, *convert], check=True)
        half_made.rename(weights)
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with the model")
    parser.add_argument("--kept", type=Path, required=True, help="where the converted model is kept")
    options, others = parser.parse_known_args()
    told = ["--model", str(converted(options.folder, options.kept)), "--embedding", "true"]
    told += ["--n_ctx", str(_CONTEXT), "--n_batch", str(_CONTEXT), "--n_threads", str(len(os.sched_getaffinity(0)))]
    sys.argv[1:] = [*told, *others]
    runpy.run_module("llama_cpp.server", run_name="__main__")
