"""Faults in the model server: checks, merging, steps, failures, profiles, the end."""

from __future__ import annotations

from tests.broken.build import Build

_CONTRACT = "tests/integration/modelserver/test_contract.py"
_PROCESS = "tests/integration/modelserver/test_process.py"

BUILDS = (
    Build(
        "blames-all-of-a-merged-step",
        "when a merged step fails, its batches run again separately, and good ones are answered",
        "modelserver/scheduler/embedding_steps.py",
        "        if merged:\n            self._queue.put_back_isolated",
        "        if False:\n            self._queue.put_back_isolated",
        (f"{_PROCESS}::test_poison_merged_with_innocents_fails_alone",),
    ),
    Build(
        "takes-ids-outside-the-vocabulary",
        "an id outside the vocabulary never reaches an engine",
        "modelserver/service/batch.py",
        "    bad = empty | too_long | foreign\n",
        "    bad = empty | too_long\n",
        (f"{_CONTRACT}::test_bad_queries_fail_alone[synthetic]",),
    ),
    Build(
        "drops-what-waits-when-it-stops",
        "on SIGTERM accepted batches are answered",
        "modelserver/scheduler/step_queue.py",
        "            self._closed = True\n            self._may_run.notify()\n",
        "            self._closed = True\n            self._waiting.clear()\n            self._may_run.notify()\n",
        (f"{_PROCESS}::test_on_sigterm_it_answers_what_it_accepted_refuses_the_rest_and_exits_with_0",),
    ),
)
