"""Predict when a request that comes now would be done, so that one which cannot be in time is refused at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.replica import Lane
from aggregator.scheduler.work_item import Priority

SLOT_S = 0.05
"""Deadlines are told apart to this many seconds."""
_TICK_S = 1e-6


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the lanes promise at one moment: `lane` can start first, at `start_s`; together they do `tokens_per_s`."""

    now_s: float
    start_s: float
    tokens_per_s: float
    lane: Lane

    def finish_s(self, tokens_ahead: int, step_tokens: int) -> float:
        """When a step of so many tokens ends that has so many others before it."""
        step_s = self.lane.step_time_s(min(step_tokens, self.lane.token_budget))
        return self.start_s + tokens_ahead / self.tokens_per_s + step_s


def forecast(lanes: Collection[Lane], now_s: float) -> Forecast | None:
    """None unless every lane has fresh evidence: where one has none, it is spare, or a batch must go through."""
    if not lanes or not all(lane.has_evidence(now_s) for lane in lanes):
        return None
    first = min(lanes, key=lambda lane: lane.free_s(now_s))
    return Forecast(now_s, first.free_s(now_s), speed(lanes), first)


def speed(lanes: Collection[Lane]) -> float:
    """Tokens per second of all lanes together in steps that are full, as far as is known."""
    return sum(lane.token_budget / max(_TICK_S, lane.step_time_s(lane.token_budget)) for lane in lanes)


@dataclass(slots=True)
class _Flow:
    """What one tenant holds in one class: requests with any deadline, and tokens by the slot of their deadline."""

    requests: int = 0
    slots: dict[int, int] = field(default_factory=dict[int, int])


class Outlook:
    """The tokens of one queue by class, tenant and deadline, in the order in which the queue would serve them."""

    def __init__(self, queue: TokenQueue) -> None:
        self._queue = queue
        self._flows: tuple[dict[str, _Flow], ...] = tuple({} for _ in Priority)

    def charge(self, priority: Priority, tenant: str, deadline_s: float, token_count: int) -> None:
        """Count a request in. Deadlines are monotonic seconds, `inf` for none."""
        flows = self._flows[priority]
        flow = flows.get(tenant)
        if flow is None:
            flow = flows[tenant] = _Flow()
        flow.requests += 1
        if deadline_s != inf:
            slot = int(deadline_s / SLOT_S)
            flow.slots[slot] = flow.slots.get(slot, 0) + token_count

    def release(self, priority: Priority, tenant: str, deadline_s: float, token_count: int) -> None:
        """Count a request out, with what it was counted in."""
        flows = self._flows[priority]
        flow = flows[tenant]
        flow.requests -= 1
        if not flow.requests:
            del flows[tenant]
        elif deadline_s != inf:
            slot = int(deadline_s / SLOT_S)
            left = flow.slots.pop(slot) - token_count
            if left:
                flow.slots[slot] = left

    def is_late(self, found: Forecast, priority: Priority, tenant: str, deadline_s: float, token_count: int) -> bool:
        """Whether a request cannot be done by its deadline, even if nothing better comes meanwhile."""
        if deadline_s == inf:
            return False
        classes = self._queue.classes
        better = sum(waiting.tokens for waiting in classes[:priority])
        waiting = classes[priority].tokens
        step_tokens = better + waiting + token_count
        if found.finish_s(better + waiting, step_tokens) <= deadline_s:
            return False  # whatever the order
        flow = self._flows[priority].get(tenant)
        slots = flow.slots if flow is not None else {}
        # The tenant's earlier deadlines come first, and as much of each other tenant.
        earlier = range(int(found.now_s / SLOT_S), int(deadline_s / SLOT_S) + 1)
        own = sum(slots.get(slot, 0) for slot in earlier)
        others = len(self._flows[priority]) - (flow is not None)
        ahead = own + (own + token_count) * others  # more than waits is as late as all that waits
        return found.finish_s(better + ahead, step_tokens) > deadline_s
