"""The other ways of batching, for comparison: first come, first served, closed by count, time or tokens.

Each gets what a careful implementation would: batches go to the pod with the fewest out, up to `depth` of them wait
at a pod so that the network's time costs nothing, queries past their deadline are dropped, and lost batches go again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority
from loadtest.simulate.model_servers import Engine, InFlightBatch

Item = tuple[float, float, int]
"""When a query came, its deadline, its tokens."""


@dataclass(frozen=True, slots=True)
class Closing:
    """When a batch is closed: at `max_queries` or `max_tokens`, or once its oldest query waited `max_wait_s`.

    `window`: it is closed by time only, however many batches arrive in it. `depth`: batches at one pod.
    `margin_s`: queries are dropped this long before their deadline, as they would be answered after it.
    """

    max_queries: int
    max_tokens: int
    max_wait_s: float = 0.0
    window: bool = False
    depth: int = 2
    margin_s: float = 0.0


class PlainAggregator:
    """One aggregator that batches by such a rule."""

    def __init__(self, number: int, engine: Engine, closing: Closing, max_held_tokens: int = 500_000) -> None:
        self.held_tokens = 0
        self.expired = 0
        self._number = number
        self._engine = engine
        self._closing = closing
        self._max_held_tokens = max_held_tokens
        self._queue: deque[Item] = deque()
        self._queued_tokens = 0
        self._out: dict[int, int] = {}
        self._again: deque[list[Item]] = deque()

    @property
    def waits(self) -> bool:
        return all(out >= self._closing.depth for out in self._out.values())

    def put(  # noqa: PLR0917 - a query, as every aggregator takes it
        self,
        now_s: float,
        arrived_s: float,
        deadline_s: float,
        token_count: int,
        priority: Priority = Priority.INTERACTIVE,
        text: bytes = b"",
    ) -> bool:
        """Take a query in; `now_s` orders it, as it came through the front door only then."""
        del now_s, priority, text
        if self.held_tokens + token_count > self._max_held_tokens:
            return False
        self._queue.append((arrived_s, deadline_s, token_count))
        self._queued_tokens += token_count
        self.held_tokens += token_count
        return True

    def due(self, now_s: float) -> tuple[Sequence[InFlightBatch], float]:
        """Every batch that is closed and finds a pod with room."""
        sent: list[InFlightBatch] = []
        while self._queue or self._again:
            pod = min(self._out, key=self._out.__getitem__, default=None)
            if pod is None or self._out[pod] >= self._closing.depth:
                return sent, inf
            self._drop_expired(now_s)
            items = self._again.popleft() if self._again else None
            if items is None:
                if not self._queue:
                    break
                closes_s = self._closes_s()
                if closes_s > now_s:
                    return sent, closes_s
                items = self._cut()
            sent.append(self._in_flight(items, pod))
        return sent, inf

    def done(self, batch: InFlightBatch, report: StepReport, now_s: float) -> Sequence[float]:
        del report, now_s
        self._came_back(batch)
        self.held_tokens -= batch.token_count
        return [arrived_s for arrived_s, _, _ in batch.body]

    def failed(self, batch: InFlightBatch, now_s: float, jitter: float) -> None:
        """Send it again, before anything else."""
        del now_s, jitter
        self._came_back(batch)
        self._again.append(batch.body)

    def join(self, pod: int) -> None:
        self._out[pod] = 0

    def leave(self, pod: int) -> None:
        self._out.pop(pod, None)

    def speeds(self) -> list[tuple[int, float]]:
        """As its curve says, at the rule's bound or the saturation point."""
        curve = self._engine.curve
        tokens = min(self._closing.max_tokens, curve.saturation_point)
        return [(tokens, curve.time_s(tokens))] * len(self._out)

    def at_floor(self) -> bool:
        """There is no budget to shrink."""
        return False

    def _closes_s(self) -> float:
        closing = self._closing
        full = len(self._queue) >= closing.max_queries or self._queued_tokens >= closing.max_tokens
        return -inf if full and not closing.window else self._queue[0][0] + closing.max_wait_s

    def _cut(self) -> list[Item]:
        closing, queue = self._closing, self._queue
        items: list[Item] = []
        tokens = 0
        while queue and len(items) < closing.max_queries:
            if items and tokens + queue[0][2] > closing.max_tokens:
                break
            item = queue.popleft()
            items.append(item)
            tokens += item[2]
        self._queued_tokens -= tokens
        return items

    def _drop_expired(self, now_s: float) -> None:
        queue, late_s = self._queue, now_s + self._closing.margin_s
        while queue and queue[0][1] <= late_s:
            tokens = queue.popleft()[2]
            self._queued_tokens -= tokens
            self.held_tokens -= tokens
            self.expired += 1

    def _came_back(self, batch: InFlightBatch) -> None:
        if batch.pod in self._out:
            self._out[batch.pod] -= 1

    def _in_flight(self, items: list[Item], pod: int) -> InFlightBatch:
        self._out[pod] += 1
        tokens = sum(item[2] for item in items)
        budget = min(self._closing.max_tokens, self._engine.step_tokens)
        # Each batch is a step of its own: merging belongs to the policy that knows budgets.
        return InFlightBatch(self._number, pod, items, tokens, len(items), budget, tokens, tokens, True, inf)
