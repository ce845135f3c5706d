"""What prefixes and prompts at once are worth, by the production dispatcher in virtual time."""

from __future__ import annotations

from loadtest.lab.generation.conversations import Load, converse


def test_servers_compute_less_of_conversations_that_come_back_to_them() -> None:
    anywhere, by_prefix = (converse(Load(80), by_prefix=prefers, at_once=True) for prefers in (False, True))
    assert by_prefix.computed < 0.9 * anywhere.computed
    assert by_prefix.first_p50_s < anywhere.first_p50_s


def test_prompts_that_come_together_have_their_first_tokens_sooner_when_they_are_sent_together() -> None:
    in_parts, at_once = (converse(Load(64, together=True), by_prefix=True, at_once=each) for each in (False, True))
    assert at_once.first_p99_s < 0.9 * in_parts.first_p99_s
