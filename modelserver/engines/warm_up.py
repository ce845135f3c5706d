"""Run the largest step once, so that its memory is allocated before the first batch."""

from __future__ import annotations

import logging
import time

import numpy as np

from modelserver.engines.engine import Engine
from modelserver.errors import CannotStart

_log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Run one step of the engine's full capacity, on its own thread. Raises CannotStart when that fails."""
    facts = engine.facts
    before_bytes = engine.peak_memory_bytes()
    began_s = time.monotonic()
    whole, rest = divmod(facts.step_token_capacity, facts.max_input_tokens)
    lengths = np.array(([facts.max_input_tokens] * whole + [rest] * (rest > 0))[: facts.step_query_capacity], np.int32)
    token_ids = np.random.default_rng(0).integers(0, facts.vocabulary_size, int(lengths.sum()), np.int32)
    try:
        engine.prepare(token_ids, lengths).run()
    except Exception as error:
        raise CannotStart(
            f"a step of {token_ids.size} tokens fails ({type(error).__name__}: {error}): set ENGINE__STEP_TOKENS lower"
        ) from error
    peak_bytes = engine.peak_memory_bytes()
    _log.info(
        "warmed up",
        extra={
            "stage": "warm-up",
            "step_tokens": token_ids.size,
            "took_s": round(time.monotonic() - began_s, 3),
            "peak_memory_bytes": peak_bytes,
            "growth_bytes": peak_bytes - before_bytes,
        },
    )
