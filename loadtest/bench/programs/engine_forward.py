"""Time an engine by itself, without gRPC and without a queue: what the server's throughput is compared with.

`python -m loadtest.bench.programs.engine_forward --queries 256 --tokens 10` takes the model server's settings from the
environment, numbers of steps on stdin, and writes seconds to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import TextIO

import numpy as np

from loadtest.bench.programs.engine_steps import prepared
from modelserver.engines.choice import build
from modelserver.engines.engine import Engine
from modelserver.model_files import ModelFiles
from modelserver.settings import ModelServerSettings
from modelserver.startup import warm_up

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

    The first line written has the engine's facts, once it is ready. Raises CannotStart.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=256, help="of each batch (%(default)s)")
    parser.add_argument("--tokens", type=int, default=10, help="of each query (%(default)s)")
    options = parser.parse_args()
    settings, files = prepared("loadtest.bench.programs.engine_forward")
    time_forward(settings, files, queries=options.queries, tokens=options.tokens, asked=sys.stdin, out=sys.stdout)


if __name__ == "__main__":
    main()
