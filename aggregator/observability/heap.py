"""Keep the collector of reference cycles from holding up an event loop."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

_YOUNG, _SURVIVED, _FULL = 10_000, 4, 1_000
"""Objects before a collection of the youngest, such collections before one of those that survived, and before all.

Each query leaves some cycles behind, gRPC's own. What is freed before the threshold is reached is never visited: of a
backlog from Kafka, collections took 1 µs a record at 2,000, next to nothing at 10,000, where a pause is under a
millisecond; 50,000 made pauses of 15 to 60 ms, the whole tail of light load.
"""


def freeze() -> None:
    """Call it when all that stays is there, a model, say: collections pass over it from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _SURVIVED, _FULL)


@contextmanager
def frozen() -> Generator[None]:
    """The same for a while, for what measures others and must not be late itself."""
    thresholds = gc.get_threshold()
    freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
