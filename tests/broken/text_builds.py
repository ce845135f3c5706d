"""Faults in what texts are promised: each token once, the same text after a fault, stop strings, who is given up."""

from __future__ import annotations

from tests.broken.build import Build

_GENERATING = "tests/unit/aggregator/replicas/texts/test_generating.py"
_TEXT = "tests/unit/aggregator/replicas/texts/test_text.py"
_SERVERS = "tests/unit/aggregator/test_replicas_of_pipeline.py"

BUILDS = (
    Build(
        "resumes-without-the-new-tokens",
        "a text continues at another server after the tokens that it has",
        "aggregator/replicas/texts/generating.py",
        "item.token_ids = text.ids_so_far",
        "item.token_ids = text.prompt_ids",
        (f"{_GENERATING}::test_a_text_goes_on_elsewhere_from_where_it_was",),
    ),
    Build(
        "tells-tokens-twice",
        "each token is told once",
        "aggregator/replicas/texts/text.py",
        "        self.taken_tokens, self._taken = len(self.token_ids), self._ready\n",
        "        self._taken = self._ready\n",
        (f"{_TEXT}::test_what_is_new_is_handed_on_once_with_the_number_of_its_first_token",),
    ),
    Build(
        "tells-half-a-stop-string",
        "what may be the beginning of a stop string waits",
        "aggregator/replicas/texts/text.py",
        "len(self._characters) - self._held_back()",
        "len(self._characters)",
        (f"{_TEXT}::test_what_may_be_the_beginning_of_a_stop_string_waits",),
    ),
    Build(
        "takes-a-lost-connection-for-proof",
        "a text is given up only where its server restarted, or its engine raised",
        "aggregator/replicas/texts/generating.py",
        "isinstance(begun.error, ModelServerLost):\n                begun",
        "isinstance(begun.error, EngineFailed):\n                begun",
        (f"{_GENERATING}::test_lost_connections_do_not_prove_that_a_text_ends_its_servers",),
    ),
    Build(
        "clears-suspects-at-their-first-token",
        "a suspect text is cleared once it has gained some tokens",
        "aggregator/replicas/texts/generating.py",
        "        if not begun.batch.isolated:\n            self.goes_well(under_way)\n",
        "        self.goes_well(under_way)\n",
        (f"{_GENERATING}::test_suspects_go_apart_and_the_rest_waits_until_they_have_gained_some_tokens",),
    ),
    Build(
        "refuses-calls-while-a-server-restarts",
        "calls wait for a server that is away for a moment",
        "aggregator/admission/routing.py",
        "not request.source.refusable or now_s < model.calls_wait_until_s",
        "not request.source.refusable",
        (f"{_SERVERS}::test_calls_wait_a_minute_for_another_server_when_the_last_one_went_and_records_wait_on",),
    ),
)
