"""Time an engine by itself, without gRPC and without a queue: what the server's throughput is compared with.

`python -m loadtest.bench.programs.engine_forward --queries 256 --tokens 10` takes the model server's settings from
the environment, numbers of steps on stdin, and writes seconds to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from loadtest.bench.programs.engine_steps import prepared
from modelserver.engines.choice import build
from modelserver.engines.engine import Engine, Task
from modelserver.registry import ENGINE_WINGS
from modelserver.startup import warm_up

_FIRST_ID = 1000
"""Below it many vocabularies keep what no text contains."""


def main() -> None:
    """For each line of stdin, a number of steps: run that many batches of random ids, and write their seconds.

    The first line written has the engine's facts, once it is ready.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, required=True, help="of each batch")
    parser.add_argument("--tokens", type=int, required=True, help="of each query")
    options = parser.parse_args()
    engine = build(*prepared("loadtest.bench.programs.engine_forward"), Task.EMBED, ENGINE_WINGS).engine
    warm_up(engine)
    facts = engine.facts
    _write({"engine": facts.kind, "dtype": facts.dtype})
    for line in sys.stdin:
        _write(_seconds(engine, int(line), options.queries, options.tokens))
    engine.close()


def _seconds(engine: Engine, steps: int, queries: int, tokens: int) -> float:
    lengths = np.full(queries, tokens, np.int32)
    shape = steps, queries * tokens
    batches = np.random.default_rng().integers(_FIRST_ID, engine.facts.vocabulary_size, shape, np.int32)
    began_s = time.perf_counter()
    for token_ids in batches:
        engine.prepare(token_ids, lengths).execute()
    return time.perf_counter() - began_s


def _write(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
