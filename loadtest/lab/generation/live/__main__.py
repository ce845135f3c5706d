"""`python -m loadtest.lab.generation.live WHAT FOLDER`: load the model in FOLDER into vLLM, measure, tell it as JSON.

A program of its own, started by `loadtest.lab.generation.live.show`: it loads torch and vLLM, and ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from loadtest.lab.generation.live.experiments import BLOCKS, EXPERIMENTS, LONGEST, STEP_TOKENS
from modelserver.engines.engine import Generator
from modelserver.process_env import prepare_engine_env
from modelserver.profile.generation import measure

_BLOCK_TOKENS = 32


def main(what: str, folder: str) -> None:
    engine = _load(folder, BLOCKS.get(what))
    cost = measure(engine)
    print(f"a step: {cost}", file=sys.stderr, flush=True)
    told = EXPERIMENTS[what](engine, cost)
    print(json.dumps({"cost": [cost.fixed_s, cost.per_sequence_s, cost.per_token_s], "rows": told}))
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would hold it up


def _load(folder: str, blocks: int | None) -> Generator:
    prepare_engine_env(os.environ, local_model=True, v1_runner=True)
    from modelserver.engines.core import LoadOptions  # noqa: PLC0415 - vLLM reads the environment first
    from modelserver.engines.vllm_generator import load  # noqa: PLC0415

    options: Mapping[str, Any] = {
        "enable_prefix_caching": False,
        **({} if blocks is None else {"num_gpu_blocks_override": blocks + 1}),
    }
    return load(
        LoadOptions(
            model_path=folder,
            dtype=None,
            model_tokens=LONGEST,
            max_input_tokens=LONGEST,
            step_tokens=STEP_TOKENS,
            options={**options, "block_size": _BLOCK_TOKENS},
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
