"""Chats on servers that keep prefixes."""

from __future__ import annotations

from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.generation.chats import Chats, converse


def test_prompts_that_find_their_beginning_are_computed_less() -> None:
    chats = Chats("own", 120)
    near, anywhere = converse(chats), converse(chats, {Mechanism.PREFIX_AFFINITY})
    assert near == converse(chats)
    assert near.in_time == anywhere.in_time == 1.0
    assert near.computed < anywhere.computed


def test_chats_of_one_system_prompt_find_their_own_words_too() -> None:
    chats = Chats("shared", 120, applications=1)
    near, anywhere = converse(chats), converse(chats, {Mechanism.PREFIX_AFFINITY})
    assert near.computed < 0.8 * anywhere.computed < 0.4


def test_generations_that_are_refused_leave_room_for_first_tokens_in_time() -> None:
    chats = Chats("overload", 1000, system_tokens=32, patience_s=3.0)
    told, waits = converse(chats), converse(chats, {Mechanism.FIRST_TOKEN_REFUSAL})
    assert told.refused_s < waits.refused_s
    assert told.goodput > 2.0 * waits.goodput
