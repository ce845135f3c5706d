"""The simulated server merges as the model server does."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulate.merging import chosen
from loadtest.simulate.parcel import Parcel
from modelserver.scheduler.merge import MergeLimits, select


@dataclass(frozen=True, eq=False)
class Ticket:
    """A parcel as the model server sees it."""

    token_count: int
    query_count: int
    max_step_tokens: int
    alone: bool


tickets = st.builds(Ticket, st.integers(1, 900), st.integers(1, 40), st.integers(300, 1200), st.booleans())


@given(st.lists(tickets, min_size=1, max_size=12), st.integers(400, 2000), st.integers(10, 100))
def test_a_step_holds_the_same_batches(waiting: list[Ticket], step_tokens: int, step_queries: int) -> None:
    parcels = [
        Parcel(0, 0, None, one.token_count, one.query_count, 600, one.max_step_tokens, one.alone, 1.0)
        for one in waiting
    ]
    theirs = select(waiting, MergeLimits(step_tokens, step_queries))
    assert theirs is not None
    ours = chosen(parcels, step_tokens, step_queries)
    assert [parcels.index(parcel) for parcel in ours] == [waiting.index(ticket) for ticket in theirs.batches]
