"""Time an engine by itself, without gRPC and without a queue: what the server's throughput is compared with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TextIO

import numpy as np

from modelserver.engines.choice import build
from modelserver.engines.engine import Engine
from modelserver.engines.warm_up import warm_up
from modelserver.model_files import ModelFiles
from modelserver.settings import ModelServerSettings

_FIRST_ID = 1000
"""Below it many vocabularies keep what no text contains."""


def time_forward(
    settings: ModelServerSettings,
    files: ModelFiles,
    *,
    queries: int,
    tokens: int,
    asked: Iterable[str],
    out: TextIO,
) -> None:
    """For each line of `asked`, a number of steps: run that many batches of random ids, and write their seconds.

    The first line written says what the engine is, once it is ready. Raises CannotStart.
    """
    engine = build(settings, files).engine
    warm_up(engine)
    rng = np.random.default_rng()
    facts = engine.facts
    _write(out, {"engine": facts.kind, "dtype": facts.dtype, "device": facts.device})
    for line in asked:
        _write(out, _seconds(engine, int(line), queries, tokens, rng))
    engine.close()


def _seconds(engine: Engine, steps: int, queries: int, tokens: int, rng: np.random.Generator) -> float:
    lengths = np.full(queries, tokens, np.int32)
    batches = rng.integers(_FIRST_ID, engine.facts.vocabulary_size, (steps, queries * tokens), np.int32)
    began_s = time.perf_counter()
    for token_ids in batches:
        engine.prepare(token_ids, lengths).run()
    return time.perf_counter() - began_s


def _write(out: TextIO, what: object) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()
