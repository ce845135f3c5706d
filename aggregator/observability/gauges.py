"""The gauges, and how a reader on any thread reads them on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from k8s.process.metrics_buffer import Instrument, Labels

_TIMEOUT_S = 1.0

Values = Mapping[Instrument, Mapping[Labels, float]]
"""Of each gauge, the present value of each series; an unknown value has no series."""

_QUEUE = ("model", "priority")
_REPLICA = ("replica", "model")
_PARTITION = ("topic", "partition")

QUEUE_TOKENS = Instrument("embed.queue.tokens", "{token}", "tokens in the queue", _QUEUE)
QUEUE_AGE = Instrument("embed.queue.age", "s", "age of the oldest query in the queue", _QUEUE)
REPLICA_STATE = Instrument("embed.replica.state", "1", "1 for the state a model server is in", (*_REPLICA, "state"))
INFLIGHT = Instrument("embed.replica.inflight_tokens", "{token}", "tokens in flight at a model server", _REPLICA)
BUDGET = Instrument("embed.token_budget", "{token}", "tokens a batch may hold", _REPLICA)
SATURATION = Instrument("embed.saturation_point", "{token}", "tokens above which throughput hardly grows", _REPLICA)
LAG = Instrument("embed.consumer.lag", "{record}", "records in the log, not yet fetched", _PARTITION)
SPAN = Instrument(
    "embed.consumer.uncommitted_span",
    "{record}",
    "records from the committed offset to the highest completed",
    _PARTITION,
)
PAUSED = Instrument("embed.consumer.paused", "1", "1 while a partition is paused", _PARTITION)

GAUGES = (
    *(QUEUE_TOKENS, QUEUE_AGE, REPLICA_STATE, INFLIGHT, BUDGET, SATURATION),
    *(LAG, SPAN, PAUSED),
)


class OnLoop:
    """Reads on the event loop it was made on, whichever thread asks.

    When the loop does not come round within a second, the last values are given again: old values are better than none.
    """

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._last: Values = {}

    def __call__(self) -> Values:
        if self._is_here() or self._loop.is_closed():
            return self._read()
        reading = asyncio.run_coroutine_threadsafe(self._read_here(), self._loop)
        try:
            self._last = reading.result(_TIMEOUT_S)
        except TimeoutError:
            reading.cancel()
        return self._last

    async def _read_here(self) -> Values:
        return self._read()

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False
