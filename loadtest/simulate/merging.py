"""Choose the batches of one engine step, as modelserver/scheduler/merge.py does (a test holds the two together)."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.simulate.parcel import Parcel


def chosen(waiting: Sequence[Parcel], step_tokens: int, step_queries: int) -> list[Parcel]:
    """The parcel that waits longest, and every other that fits beside it within all their senders' budgets."""
    head = waiting[0]
    if head.alone:
        return [head]
    step = [head]
    tokens, queries = head.token_count, head.query_count
    budget = min(head.max_step_tokens, step_tokens)
    for parcel in waiting[1:]:
        allowed = min(budget, parcel.max_step_tokens)
        if parcel.alone or tokens + parcel.token_count > allowed or queries + parcel.query_count > step_queries:
            continue
        step.append(parcel)
        tokens, queries, budget = tokens + parcel.token_count, queries + parcel.query_count, allowed
    return step
