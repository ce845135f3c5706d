"""What a queued request occupies: its model's bounds and places in its queue, until its reply is delivered."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.admission.bounds import Admission
from aggregator.request import Request
from aggregator.scheduler.budget.controller import SloTracker
from aggregator.scheduler.queue import TokenQueue


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Where requests that were queued together, at `queued_s`, are counted."""

    admission: Admission
    queue: TokenQueue
    slo: SloTracker | None
    queued_s: float


def hold(request: Request, held: Held, token_count: int) -> None:
    """Count a request with `token_count` tokens, until `release`."""
    request.held = held
    request.token_count = token_count
    held.admission.charge(token_count, request.tenant, refusable=request.source.refusable)


def release(request: Request) -> None:
    """Count it out, once. Its queries refer back to it: kept, both would wait for the garbage collector."""
    held, request.held = request.held, None
    request.queries = ()
    if held is not None:
        held.admission.release(request.token_count, request.tenant, refusable=request.source.refusable)
