"""Run both kinds of engine on vLLM's second model runner, and write what came out beside what transformers gives.

`run_mixed` runs it in its process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=False)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import torch  # noqa: E402
from transformers import AutoModel  # noqa: E402

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines.core import load  # noqa: E402
from modelserver.engines.engine import Task  # noqa: E402
from modelserver.engines.vllm_internals import runner_of  # noqa: E402
from modelserver.model_files import locate  # noqa: E402
from modelserver.registry import ALTERNATIVES, ENGINE_WINGS  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings  # noqa: E402
from modelserver.wings.generation.vllm_generator import VllmGenerator  # noqa: E402
from modelserver.wings.generation.vllm_generator import load as load_generator  # noqa: E402
from protos.modelserver.v1 import modelserver_pb2 as pb  # noqa: E402
from tests.integration.modelserver import tiny_models  # noqa: E402
from tests.integration.modelserver.run_engines import embed, options  # noqa: E402
from tests.integration.modelserver.texts import questions, token_ids  # noqa: E402
from tests.integration.modelserver.wings.both.run_generation import freed, seeded  # noqa: E402

QUESTIONS = 16
TOKENS = 12
SEEDED_TOKENS = 6
PROMPT = [7, 99, 500, 12, 340]


def embeddings(kind: str, folder: Path) -> dict[str, Any]:
    """The largest difference to transformers of a small random model's unit vectors."""
    model = tiny_models.MODELS[kind]()
    tiny_models.save(model, folder / kind)
    queries = tiny_models.queries()
    core = load(options(str(folder / kind)))
    runner = type(runner_of(core.core)).__mro__[1].__module__
    found, expected = embed(core, queries), model.pooled(queries)
    refusals = [choose(core, EngineSettings(), choice.uncounted).fallback for choose in ALTERNATIVES.values()]
    result = {"runner": runner, "difference": _difference(found, expected), "refusals": refusals}
    core.close()
    return result


def generation(folder: Path) -> dict[str, Any]:
    """The tokens of a small random model: the likeliest, and seeded ones."""
    model = tiny_models.MODELS["qwen3"]()
    tiny_models.save(model, folder)
    engine = load_generator(options(str(folder)))
    result = {
        "greedy": _generated(engine, TOKENS, temperature=0.0),
        "truncated": [
            _generated(engine, 4, temperature=0.9, seed=5, **kept) for kept in ({"top_k": 1}, {"top_p": 1e-6})
        ],
        "expected": tiny_models.likeliest(model.whole, PROMPT, TOKENS),
        "seeded": seeded(engine, PROMPT, SEEDED_TOKENS),
        "freed": freed(engine, PROMPT),
    }
    engine.close()
    return result


def minilm() -> float:
    """The same of MiniLM's, on the engine that a model server builds."""
    path = locate("", "")
    settings = ModelServerSettings(engine=EngineSettings(kind="core", dtype="float32", step_tokens=256))
    engine = choice.build(settings, model_files.read(path, ""), Task.EMBED, ENGINE_WINGS).engine
    body = AutoModel.from_pretrained(path).eval()
    queries = token_ids(questions(QUESTIONS))
    expected = tiny_models.TinyModel(body, body, "mean", encoder_only=True, size=384).pooled(queries)
    found = embed(engine, queries)
    engine.close()
    return _difference(found, expected)


def _difference(found: Any, expected: Any) -> float:
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (found, expected)]
    return float(np.abs(units[0] - units[1]).max())


def _generated(engine: VllmGenerator, count: int, **sampling: Any) -> list[int]:
    engine.add("one", PROMPT, pb.Sampling(max_tokens=count, ignore_eos=True, **sampling))
    tokens: list[int] = []
    while engine.has_work:
        for new in engine.step()[0]:
            tokens += new.token_ids
    return tokens


def results(folder: Path) -> dict[str, Any]:
    """All of it."""
    torch.manual_seed(0)
    found: dict[str, Any] = {kind: embeddings(kind, folder) for kind in tiny_models.MODELS}
    return found | {"generation": generation(folder / "g"), "minilm": minilm()}
