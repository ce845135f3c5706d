"""Compute with graphs what the direct engine computes, of each kind of model that it serves, and write the differences.

Started by `test_graphed_models.py`: `python -m tests.integration.modelserver.wings.direct.run_graphs FOLDER NAME ...`.
A capture runs the same computation on the same buffers, which are poisoned before each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import torch  # noqa: E402

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines.engine import Launch  # noqa: E402
from modelserver.modes import tasks_of  # noqa: E402
from modelserver.registry import ENGINE_WINGS  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings, ModelSettings  # noqa: E402
from modelserver.wings.direct import agreement  # noqa: E402
from modelserver.wings.direct.copies import by_one_copy  # noqa: E402
from modelserver.wings.direct.engine import Attention, DirectEngine  # noqa: E402
from modelserver.wings.direct.graphs.device import Tensors  # noqa: E402
from modelserver.wings.direct.graphs.engine import GraphedEngine, with_graphs  # noqa: E402
from tests.integration.modelserver import model_families, run_modules, run_scoring, tiny_models  # noqa: E402
from tests.integration.modelserver.run_engines import CACHE_BLOCKS, STEP_TOKENS  # noqa: E402
from tests.integration.modelserver.several_engines import several_engines  # noqa: E402
from tests.integration.modelserver.wings.direct.graph_devices import POISON_ID, Immediate  # noqa: E402

LENGTHS: Mapping[str, list[int]] = {
    "full": [16] * 64,
    "one token": [1],
    "three quarters": [3] * 60 + [10] * 30 + [128, 40],
    "full of the longest": [128] * 8,
    "small": [5, 1, 9],
    "alone": [128],
    "half": [10, 20, 30, 4] * 8,
    "one token again": [1],
}
"""Steps in the order in which they run: large ones, then small ones, then large ones."""


class OnCpu(DirectEngine):
    """vLLM's attention for CPUs takes no empty queries."""

    def attend(self, inputs: Tensors, longest: int) -> Attention:
        taken = inputs.lengths > 0
        ends = torch.cat((torch.ones(1, dtype=torch.bool), taken))
        return super().attend(inputs._replace(bounds=inputs.bounds[ends], lengths=inputs.lengths[taken]), longest)


class ByOneCopy(OnCpu):
    """Its steps take the way to a GPU."""

    copies = 0

    def copied(self, parts: Sequence[Any]) -> Sequence[Any]:
        def copy(buffer: torch.Tensor) -> torch.Tensor:
            self.copies += 1
            return buffer.clone()

        return by_one_copy(parts, lambda size: torch.full((size,), POISON_ID, dtype=torch.int32), copy)


def models(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path, Literal["auto", "embed"]]]:
    """Write those with these names: families, classifiers after "score", poolings after "pool"; each with its task."""
    run_modules.bare(folder)
    (folder / "scores").mkdir()
    for name in names:
        kind, _, shape = name.rpartition(" ")
        if kind == "score":
            run_scoring.SHAPES[shape].save(folder / "scores" / shape)
            yield name, folder / "scores" / shape, "auto"
        elif kind == "pool":
            run_modules.saved(shape, folder)
            yield name, folder / "saved" / shape, "auto"
        else:
            model_families.SHAPES[name].save(folder / name)
            tiny_models.limit_tokenizer(folder / name)
            yield name, folder / name, "embed"


def compared(path: Path, task: Literal["auto", "embed"]) -> dict[str, Any]:
    """The sizes of a model's graphs, the differences of its steps, and how these were launched."""
    engine = EngineSettings(
        kind="core", dtype="float32", step_tokens=STEP_TOKENS, vllm_options={"num_gpu_blocks_override": CACHE_BLOCKS}
    )
    settings = ModelServerSettings(model=ModelSettings(path=str(path), task=task), engine=engine)
    files = model_files.read(path, "")
    core: Any = choice.build(
        settings, files, min(tasks_of(settings, files, (), ENGINE_WINGS.scoring_of)), ENGINE_WINGS
    ).engine
    direct, counted = ByOneCopy(core), list[Launch]()
    graphed = with_graphs(OnCpu(core), Immediate(), counted.append)
    apart = differences(graphed, direct)
    found = {"sizes": graphed.facts.capture_sizes, "apart": apart, "launches": counted, "copies": direct.copies}
    graphed.close()
    return found


def differences(graphed: GraphedEngine, direct: DirectEngine) -> dict[str, float]:
    facts, rng = direct.facts, np.random.default_rng(7)
    found: dict[str, float] = {}
    for name, given in LENGTHS.items():
        lengths = np.minimum(np.array(given, np.int32), facts.max_input_tokens)
        ids = rng.integers(5, facts.vocabulary_size, int(lengths.sum()), np.int32)
        second = lengths // 2 if facts.token_types else None
        ours, theirs = graphed.prepare(ids, lengths, second), direct.prepare(ids, lengths, second)
        found[name] = agreement.apart(ours.execute(), theirs.execute(), facts)
    return found


def main(folder: Path, names: Sequence[str]) -> None:
    """Write all models, before one is computed: vLLM changes classes of transformers. Then a line for each."""
    torch.manual_seed(0)
    written = list(models(folder, names))
    with several_engines(), (folder / "graphs.jsonl").open("w", encoding="utf-8") as file:
        for name, path, task in written:
            try:
                found = compared(path, task)
            except Exception as error:  # noqa: BLE001 - it is the result
                found = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps({"name": name, **found}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
