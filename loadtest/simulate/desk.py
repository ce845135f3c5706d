"""The one core that an aggregator works on: what comes while it is busy waits its turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Processor seconds of an aggregator, and of callers on the same core: half before the engine, half after it.

    `call_s` of a query's caller, `query_s` of each query, `batch_s` of each batch; `step_s` of each engine step is the
    model server's own, on the engine's core, beside the step itself. A batch's queries are answered before callers
    read any. All 0: nothing waits for a core, as where there are enough of them.
    """

    call_s: float = 0.0
    query_s: float = 0.0
    batch_s: float = 0.0
    step_s: float = 0.0

    def __str__(self) -> str:
        """In milliseconds."""
        each = (("call", self.call_s), ("query", self.query_s), ("batch", self.batch_s), ("step", self.step_s))
        return "a core for " + ", ".join(f"{1e3 * work_s:.2f} ms a {what}" for what, work_s in each)

    @property
    def waits(self) -> bool:
        """Whether an aggregator's core can be busy at all."""
        return self.call_s > 0.0 or self.query_s > 0.0 or self.batch_s > 0.0


class Desk:
    """One aggregator's core: work in the order in which it comes."""

    __slots__ = ("_free_s",)

    def __init__(self) -> None:
        self._free_s = 0.0

    def done_s(self, now_s: float, work_s: float) -> float:
        """When work that comes now is done."""
        self._free_s = max(self._free_s, now_s) + work_s
        return self._free_s
