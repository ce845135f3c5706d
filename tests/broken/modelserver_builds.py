"""Faults in the model server: checks, merging, steps, failures, profiles, the end."""

from __future__ import annotations

from tests.broken.build import Build

_CONTRACT = "tests/integration/modelserver/test_contract.py"
_PROCESS = "tests/integration/modelserver/test_process.py"
_SERVER = "tests/integration/modelserver/test_server.py"
_MERGE = "tests/unit/modelserver/scheduler/test_merge.py"
_LOOP = "tests/unit/modelserver/test_loop.py"
_PROFILE = "tests/unit/modelserver/profile/test_measure.py"
_BATCH = "tests/unit/modelserver/service/test_batch.py"

BUILDS = (
    Build(
        "mixes-owners-results",
        "batches that share a step each get their own vectors",
        "modelserver/scheduler/embedding_steps.py",
        "    for queued in batches:\n        rows = matrix[first",
        "    for queued in reversed(batches):\n        rows = matrix[first",
        (
            f"{_CONTRACT}::test_batches_sent_at_once_are_merged_within_the_smallest_budget_and_answered_apart[synthetic]",
        ),
    ),
    Build(
        "ignores-a-sender-s-step-limit",
        "a merged step stays within the smallest budget among its senders'",
        "modelserver/scheduler/merge.py",
        "        allowed = min(budget, batch.max_step_tokens)\n",
        "        allowed = limits.step_tokens\n",
        (
            f"{_CONTRACT}::test_batches_sent_at_once_are_merged_within_the_smallest_budget_and_answered_apart[synthetic]",
        ),
    ),
    Build(
        "ignores-the-engine-s-step-limit",
        "a step holds no more tokens than the engine can",
        "modelserver/scheduler/merge.py",
        "    budget = min(head.max_step_tokens, limits.step_tokens)\n",
        "    budget = head.max_step_tokens\n",
        (f"{_MERGE}::test_a_step_holds_no_more_tokens_than_the_engine_does",),
    ),
    Build(
        "merges-a-second-attempt",
        "a batch that is sent again is never merged",
        "modelserver/service/servicer.py",
        "alone=request.attempt > 0 or request.isolate",
        "alone=request.isolate",
        (f"{_CONTRACT}::test_a_second_attempt_and_an_isolated_batch_are_never_merged[synthetic]",),
    ),
    Build(
        "merges-what-is-isolated",
        "a batch that asks to run alone is never merged",
        "modelserver/service/servicer.py",
        "alone=request.attempt > 0 or request.isolate",
        "alone=request.attempt > 0",
        (f"{_CONTRACT}::test_a_second_attempt_and_an_isolated_batch_are_never_merged[synthetic]",),
    ),
    Build(
        "blames-all-of-a-merged-step",
        "when a merged step fails, its batches run again separately, and good ones are answered",
        "modelserver/scheduler/embedding_steps.py",
        "        if merged:\n            self._queue.put_back_isolated",
        "        if False:\n            self._queue.put_back_isolated",
        (f"{_PROCESS}::test_poison_merged_with_innocents_fails_alone",),
    ),
    Build(
        "blames-a-sender-for-a-merged-break",
        "when a merged step breaks the engine, no batch counts as the cause",
        "modelserver/scheduler/embedding_steps.py",
        '            _deliver(batches, broken if merged else StepFailed(f"the engine broke: {error}"))\n',
        '            _deliver(batches, StepFailed(f"the engine broke: {error}"))\n',
        (f"{_LOOP}::test_of_a_merged_step_that_breaks_the_engine_nobody_is_blamed",),
    ),
    Build(
        "answers-a-failed-step-with-zeros",
        "a failed step is reported as a failure",
        "modelserver/service/servicer.py",
        "    if isinstance(outcome, ModelServerError):\n        raise outcome\n    return outcome\n",
        "    if isinstance(outcome, ModelServerError):\n        return None\n    return outcome\n",
        (f"{_SERVER}::test_poison_is_internal_and_the_next_batch_is_fine",),
    ),
    Build(
        "answers-numbers-that-are-none",
        "a vector that is not finite is an error of its query",
        "modelserver/service/batch.py",
        "        faults += tuple(\n",
        "        _ = tuple(\n",
        (f"{_BATCH}::test_a_vector_that_is_not_finite_is_a_fault_of_its_query_alone",),
    ),
    Build(
        "answers-fewer-vectors-than-queries",
        "a step with a missing vector has failed",
        "modelserver/scheduler/embedding_steps.py",
        "            _check(matrix, batches)\n",
        "",
        (f"{_LOOP}::test_an_engine_that_loses_a_vector_has_failed_its_step",),
    ),
    Build(
        "puts-vectors-in-the-wrong-places",
        "bad queries of a batch fail alone, and the others keep their positions",
        "modelserver/service/batch.py",
        "        whole[batch.positions] = matrix\n",
        "        whole[: len(matrix)] = matrix\n",
        (f"{_CONTRACT}::test_bad_queries_fail_alone[synthetic]",),
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
        "serves-a-revision-that-it-has-not",
        "a batch for another revision is refused",
        "modelserver/service/servicer.py",
        "    if request.model_revision != served.model_revision:\n",
        "    if False:\n",
        (f"{_CONTRACT}::test_what_is_not_a_batch_for_it_is_refused_whole[synthetic-another revision]",),
    ),
    Build(
        "takes-more-than-its-queue-holds",
        "a server with a full queue refuses batches",
        "modelserver/scheduler/step_queue.py",
        '                raise QueueFull(f"{self._queued_tokens} tokens wait already")\n',
        "                pass\n",
        (f"{_PROCESS}::test_above_its_bound_it_refuses_and_later_takes_again",),
    ),
    Build(
        "computes-for-callers-who-have-gone",
        "a batch whose deadline has passed never runs",
        "modelserver/scheduler/queued_batch.py",
        "        return not self.withdrawn and now_s < self.deadline_s\n",
        "        return True\n",
        (f"{_PROCESS}::test_a_batch_whose_deadline_passes_while_it_waits_never_runs",),
    ),
    Build(
        "drops-what-waits-when-it-stops",
        "on SIGTERM accepted batches are answered",
        "modelserver/scheduler/step_queue.py",
        "            self._closed = True\n            self._may_run.notify()\n",
        "            self._closed = True\n            self._waiting.clear()\n            self._may_run.notify()\n",
        (f"{_PROCESS}::test_on_sigterm_it_answers_what_it_accepted_refuses_the_rest_and_exits_with_0",),
    ),
    Build(
        "hangs-up-before-it-has-answered",
        "on SIGTERM a server waits until its responses are sent",
        "modelserver/app.py",
        "                await self._servicer.idle()\n                if self._serving.description is not None:",
        "                if False:",
        (f"{_PROCESS}::test_on_sigterm_it_answers_what_it_accepted_refuses_the_rest_and_exits_with_0",),
    ),
    Build(
        "says-that-it-serves-before-it-does",
        "until the engine is ready, health says NOT_SERVING",
        "modelserver/app.py",
        "        await self._set_health(serving=False)\n",
        "        await self._set_health(serving=True)\n",
        (f"{_SERVER}::test_until_the_engine_is_ready_it_refuses_but_gives_the_tokenizer",),
    ),
    Build(
        "uses-a-stale-profile",
        "a profile of another model or device is refused",
        "modelserver/profile/store.py",
        "    if foreign:\n",
        "    if False:\n",
        (f"{_PROFILE}::test_a_profile_of_something_else_is_refused_and_says_what_differs",),
    ),
)
