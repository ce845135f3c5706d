"""Faults in the promises of generation: each token once, the same text after a fault, stop strings, giving up."""

from __future__ import annotations

from tests.broken.build import Build

_RUNNER = "tests/unit/aggregator/test_generations.py"
_TEXT = "tests/unit/aggregator/test_generated_text.py"

BUILDS = (
    Build(
        "resumes-without-the-new-tokens",
        "a generation resumes on another server after the tokens that it has",
        "aggregator/pipeline/generation.py",
        "self.item.token_ids = generation.ids_so_far",
        "self.item.token_ids = generation.prompt_ids",
        (f"{_RUNNER}::test_a_generation_resumes_on_another_server_after_its_tokens",),
    ),
    Build(
        "sends-tokens-twice",
        "each token is sent once",
        "aggregator/request/generated_text.py",
        "        self.sent_tokens, self._sent = len(self.token_ids), self._ready\n",
        "        self._sent = self._ready\n",
        (f"{_TEXT}::test_new_text_is_read_once_with_the_index_of_its_first_token",),
    ),
    Build(
        "takes-a-lost-connection-for-proof",
        "a generation is given up only if its server restarted, or its engine raised",
        "aggregator/pipeline/run.py",
        "alone and isinstance(error, ModelServerLost)",
        "alone and isinstance(error, EngineFailed)",
        (f"{_RUNNER}::test_lost_connections_do_not_prove_that_a_prompt_kills_servers",),
    ),
)
