"""Compute folders of every layout as the model server does, and write how far their rows are from their libraries'.

Started by `test_token_vectors.py`, once `tests.support.token_vector_folders` has written FOLDER:
`python -m tests.integration.modelserver.wings.token_vectors.run_token_vectors FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import numpy.typing as npt  # noqa: E402

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines.engine import Engine, Spans, Task  # noqa: E402
from modelserver.engines.rows import with_rows  # noqa: E402
from modelserver.registry import ENGINE_WINGS, ROWS  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings  # noqa: E402
from tests.integration.modelserver.several_engines import several_engines  # noqa: E402

Rows = npt.NDArray[np.float32]
Expected = dict[str, npt.NDArray[Any]]


def settings() -> ModelServerSettings:
    options = {"num_gpu_blocks_override": 128}
    return ModelServerSettings(
        engine=EngineSettings(kind="auto", dtype="float32", step_tokens=1024, vllm_options=options)
    )


def together(engine: Engine, ids: list[npt.NDArray[Any]], places: list[npt.NDArray[Any]]) -> list[Rows]:
    """The rows of all texts, computed in one step."""
    spans = np.concatenate([np.stack((each, each + 1), axis=1) for each in places]).astype(np.int32)
    counts = np.array([each.size for each in places], np.int32)
    lengths = np.array([each.size for each in ids], np.int32)
    found = engine.prepare(np.concatenate(ids).astype(np.int32), lengths, None, Spans(counts, spans)).execute()
    return np.split(found, np.cumsum(counts)[:-1])


def run(folder: Path, expected: Expected) -> Iterator[dict[str, Any]]:
    """A line of each layout; of BGE-M3's of each output."""
    for name in sorted({key.partition("/")[0] for key in expected}):
        for task in ("auto",) if name != "bge" else ("multi_vector", "sparse"):
            files = with_rows(model_files.read(folder / name, ""), task, ROWS)
            engine = choice.build(settings(), files, Task.EMBED, ENGINE_WINGS).engine
            apart = _bge_apart(engine, expected, task) if name == "bge" else _apart(engine, expected, name)
            yield {"name": name, "task": task, "engine": engine.facts.kind, "apart": apart}
            engine.close()


def _apart(engine: Engine, expected: Expected, name: str) -> float:
    keys = sorted(key.removesuffix("/ids") for key in expected if key.startswith(f"{name}/") and key.endswith("/ids"))
    rows = together(engine, [expected[f"{key}/ids"] for key in keys], [expected[f"{key}/places"] for key in keys])
    unit = name != "least"  # whose folder has no normalization
    return max(
        float(np.abs((_unit(found) if unit else found) - expected[f"{key}/rows"]).max())
        for key, found in zip(keys, rows, strict=True)
    )


def _bge_apart(engine: Engine, expected: Expected, task: str) -> float:
    """Of all tokens but the first; of weights the largest of each id that is not special."""
    numbers = sorted({key.split("/")[1] for key in expected if key.startswith("bge/")})
    ids = [expected[f"bge/{number}/ids"] for number in numbers]
    worst = 0.0
    for number, token_ids, found in zip(
        numbers, ids, together(engine, ids, [np.arange(each.size) for each in ids]), strict=True
    ):
        if task == "multi_vector":
            worst = max(worst, float(np.abs(_unit(found[1:]) - expected[f"bge/{number}/rows"]).max()))
            continue
        for token_id, weight in zip(expected[f"bge/{number}/indices"], expected[f"bge/{number}/weights"], strict=True):
            worst = max(worst, abs(float(found[token_ids == token_id].max()) - float(weight)))
    return worst


def _unit(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    with np.load(root / "expected.npz") as arrays:
        known = {key: arrays[key] for key in arrays.files}
    with several_engines(), (root / "found.jsonl").open("w", encoding="utf-8") as out:
        for line in run(root, known):
            out.write(json.dumps(line) + "\n")
