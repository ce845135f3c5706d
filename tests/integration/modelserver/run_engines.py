"""Run real vLLM engines in this process, beside the libraries they are compared with, and write what came out.

`run_modules` runs it in its process.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402
from vllm import LLM, TokensPrompt  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines import core as core_module  # noqa: E402
from modelserver.engines.core import CoreEngine, LoadOptions, chosen_dtype, engine_config, load  # noqa: E402
from modelserver.engines.engine import Engine  # noqa: E402
from modelserver.engines.vllm_internals import captured as captured_sizes  # noqa: E402
from modelserver.engines.vllm_internals import runner_of  # noqa: E402
from modelserver.errors import CannotStart, EngineBroken  # noqa: E402
from modelserver.model_files import locate  # noqa: E402
from modelserver.modes import tasks_of  # noqa: E402
from modelserver.registry import ALTERNATIVES, ENGINE_WINGS, MODES  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings  # noqa: E402
from tests.integration.modelserver.texts import generated, questions, token_ids  # noqa: E402

Vectors = npt.NDArray[np.float32]

QUESTIONS = 60
STEP_TOKENS = 1024
CACHE_BLOCKS = 128
"""Of decoders: enough for a step, and filled with zeros in no time."""


def texts() -> list[str]:
    """What is embedded: questions first."""
    return questions(QUESTIONS) + generated()


def options(path: str, dtype: str = "float32") -> LoadOptions:
    """How the model server loads a model."""
    return LoadOptions(
        model_path=path,
        dtype=dtype,
        model_tokens=256,
        max_input_tokens=None,
        step_tokens=STEP_TOKENS,
        options={"num_gpu_blocks_override": CACHE_BLOCKS},
        classes=ENGINE_WINGS.classes,
    )


def embed(engine: Engine, queries: list[list[int]]) -> Vectors:
    """All queries, in as many steps as they need."""
    parts: list[Vectors] = []
    batch: list[list[int]] = []
    for query in [*queries, None]:
        if query is None or sum(map(len, batch)) + len(query) > engine.facts.step_token_capacity:
            ids = np.array([token for one in batch for token in one], np.int32)
            parts.append(engine.prepare(ids, np.array(list(map(len, batch)), np.int32)).execute())
            batch = []
        if query is not None:
            batch.append(query)
    return np.concatenate(parts)


def alternatives(core: CoreEngine) -> dict[str, Engine]:
    """The engines beside vLLM's own way that agree with it, by name."""
    chosen = {name: choose(core, EngineSettings(), choice.uncounted) for name, choose in ALTERNATIVES.items()}
    return {name: choice.engine for name, choice in chosen.items() if not choice.fallback}


def minilm_float32() -> dict[str, Any]:
    """LLM.embed and every engine on one loaded model, then what a broken step leaves behind."""
    queries = token_ids(texts())
    llm = LLM(
        str(locate("", "")),
        runner="pooling",
        dtype="float32",
        block_size=32,
        enforce_eager=True,
        max_num_batched_tokens=STEP_TOKENS,
        enable_prefix_caching=False,
    )
    outputs = llm.embed([TokensPrompt(prompt_token_ids=query) for query in queries], use_tqdm=False)
    client: Any = llm.llm_engine.engine_core
    core = CoreEngine(client.engine_core)
    engines: dict[str, Engine] = {"core": core, **alternatives(core)}
    result: dict[str, Any] = {"oracle": np.array([output.outputs.embedding for output in outputs], np.float32)}
    result |= {name: embed(engine, queries) for name, engine in engines.items()}
    result |= {"recovers": {name: _recovers(engine) for name, engine in engines.items()}, "breaks": _breaks(core)}
    core.close()
    return result


def _recovers(engine: Engine) -> bool:
    """Whether an id outside the vocabulary, had it passed the checks, is survived."""
    before = embed(engine, [[101, 2054, 102]])
    try:
        embed(engine, [[101, 102], [101, 10**8, 102]])
    except IndexError:
        engine.recover()
        return bool(np.array_equal(embed(engine, [[101, 2054, 102]]), before))
    return False


def _breaks(core: CoreEngine) -> bool:
    """Whether a query longer than the model takes, had it passed the checks, is told to be past recovery."""
    try:
        core.prepare(np.full(300, 2054, np.int32), np.array([300], np.int32)).execute()
    except Exception:  # noqa: BLE001 - whatever the runner makes of it
        try:
            core.recover()
        except EngineBroken:
            return True
    return False


def minilm_rebuilt() -> dict[str, Any]:
    """A new engine in the process of the broken one."""
    core = load(options(str(locate("", ""))))
    result = {"core": embed(core, token_ids(texts())[:QUESTIONS]), "threads": _threads(core)}
    core.close()
    return result


def _threads(core: CoreEngine) -> list[int]:
    """Threads of torch's in a small step, in a larger one, and after both, of an engine that has three."""
    had, counts = core.threads.count, list[int]()
    core.threads.count, core.threads.threaded_tokens = 3, 10
    for tokens in (9, 10):
        with core.threads.of(tokens):
            counts.append(torch.get_num_threads())
    counts.append(torch.get_num_threads())
    core.threads.count = had
    with core.threads.of(9):
        return counts


def minilm_bfloat16() -> dict[str, Any]:
    """What bfloat16 makes of the questions."""
    core = load(options(str(locate("", "")), "bfloat16"))
    engines: dict[str, Engine] = {"core": core, **alternatives(core)}
    result: dict[str, Any] = {name: embed(engine, token_ids(texts()[:QUESTIONS])) for name, engine in engines.items()}
    core.close()
    return result


def freed() -> dict[str, Any]:
    """Bytes of a model's weights while its engines serve, and once they are closed, though they are still known."""
    core = load(options(str(locate("", ""))))
    serving = [core, *alternatives(core).values()][-1]
    embed(serving, [[101, 2054, 102]])
    weights = [weakref.ref(each) for each in runner_of(core.core).model.parameters()]

    def alive() -> int:
        return sum(each.nbytes for each in (weight() for weight in weights) if each is not None)

    before = alive()
    serving.close()
    gc.collect()
    return {"bytes": [before, alive()]}


def dtypes() -> dict[str, Any]:
    """What is chosen on processors with these instructions."""
    able = {"none": {"avx512_f": True, "avx512_bf16": False}, "avx512": {"avx512_bf16": True}, "arm": {"bf16": True}}

    def on(capabilities: dict[str, bool]) -> str:
        with patch.object(torch.cpu, "get_capabilities", return_value=capabilities):
            return chosen_dtype()

    return {name: on(capabilities) for name, capabilities in able.items()}


def captured() -> dict[str, Any]:
    """The graph sizes that vLLM captures with these settings on a GPU, and its shares of the memory."""
    platform, plain = type(current_platform), options(str(locate("", "")))
    asked = {
        "asked": plain,
        "direct": replace(plain, graphs=False),
        "own": replace(plain, options={"cudagraph_capture_sizes": [16, 64]}),
        "eager": replace(plain, options={"enforce_eager": True}),
    }
    with (
        patch.object(core_module, "on_cpu", return_value=False),
        patch.object(platform, "support_static_graph_mode", lambda *_: True),
        patch.object(platform, "check_and_update_config", lambda *_: None),
        patch.dict(os.environ, TORCH_COMPILE_DISABLE="0"),
    ):
        own = engine_config(replace(plain, options={"gpu_memory_utilization": 0.5}))
        shares = [each.cache_config.gpu_memory_utilization for each in (engine_config(plain), own)]
        return {name: captured_sizes(engine_config(each)) for name, each in asked.items()} | {"shares": shares}


REFUSED: Mapping[str, Mapping[str, Any]] = {
    "unknown": {"architectures": ["NobodysModel"]},
    "classifier": {"architectures": ["BertForSequenceClassification"]},
    "jina-v3": {
        "architectures": ["XLMRobertaModel"],
        "auto_map": {"AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration.XLMRobertaFlashConfig"},
        "lora_adaptations": ["retrieval.query", "retrieval.passage", "text-matching"],
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
    },
    "gte-v1.5": {
        "architectures": ["NewModel"],
        "auto_map": {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"},
        "model_type": "new",
    },
}
"""Entries of config.json, the last two of them as published."""


def refused(folder: Path) -> dict[str, Any]:
    """What is said to models that vLLM does not embed with, when they are checked and when they are loaded."""
    said: dict[str, Any] = {}
    for name, entries in REFUSED.items():
        linked = shutil.copytree(locate("", "").resolve(), folder / name, copy_function=os.symlink)
        config = json.loads((linked / "config.json").read_text(encoding="utf-8"))
        (linked / "config.json").unlink()
        (linked / "config.json").write_text(json.dumps({**config, **entries}), encoding="utf-8")
        settings, files = ModelServerSettings(engine=EngineSettings(kind="core")), model_files.read(linked, "")
        said[name] = [_refusal(partial(job, settings, files)) for job in (check, build)]
    return said


def check(settings: ModelServerSettings, files: model_files.ModelFiles) -> None:
    choice.check(settings, files, min(tasks_of(settings, files, MODES, ENGINE_WINGS.scoring_of)), ENGINE_WINGS)


def build(settings: ModelServerSettings, files: model_files.ModelFiles) -> choice.Choice:
    return choice.build(settings, files, min(tasks_of(settings, files, MODES, ENGINE_WINGS.scoring_of)), ENGINE_WINGS)


def _refusal(job: Callable[[], object]) -> str:
    try:
        job()
    except CannotStart as error:
        return str(error)
    return ""


def reference() -> dict[str, Any]:
    """sentence-transformers in float32."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow to import

    model = SentenceTransformer(str(locate("", "")), device="cpu")
    return {"vectors": np.asarray(model.encode(texts(), normalize_embeddings=True), np.float32)}


def run(folder: Path) -> None:
    """Run all jobs but the last one."""
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "minilm_float32": minilm_float32,
        "minilm_rebuilt": minilm_rebuilt,
        "minilm_bfloat16": minilm_bfloat16,
        "dtypes": dtypes,
        "captured": captured,
        "refused": partial(refused, folder),
        "reference": reference,
    }
    for name, job in jobs.items():
        write(folder, name, job())


def write(folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Its arrays and its figures."""
    arrays = {key: value for key, value in result.items() if isinstance(value, np.ndarray)}
    figures = {key: value for key, value in result.items() if key not in arrays}
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    (folder / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")
