"""Faults between intake and completion: routing, truncation, batches, retries, sharing out, encoding."""

from __future__ import annotations

from tests.broken.build import Build

_RIGHT = "tests/integration/aggregator/test_right.py"
_NEIGHBOURS = "tests/integration/aggregator/test_bad_neighbours.py"
_LIFECYCLE = "tests/integration/aggregator/test_lifecycle.py"
_EMBED = "tests/integration/frontdoor/test_embed.py"
_EJECTED = "tests/integration/pool/test_ejected.py"
_ENGINES = "tests/contract/test_engines.py"
_FAILED = "tests/unit/aggregator/test_failed_batches.py"
_SERVERS = "tests/unit/aggregator/test_replicas_of_pipeline.py"

BUILDS = (
    Build(
        "swaps-two-results",
        "each input gets its own vector",
        "aggregator/sources/completion.py",
        "Vector(completed, row, item.token_count",
        "Vector(completed, (row + 1) % len(batch.items), item.token_count",
        ("tests/unit/aggregator/test_pipeline.py::test_every_input_of_a_request_is_answered_in_its_place",),
    ),
    Build(
        "drops-a-result-on-a-retry",
        "every item of a batch that is sent again is answered",
        "aggregator/sources/completion.py",
        "            if query.item is item:\n                outcome",
        "            if query.item is item and not (batch.attempt and row == 0):\n                outcome",
        (f"{_FAILED}::test_a_batch_whose_server_is_lost_is_answered_by_another_and_the_server_is_suspect",),
    ),
    Build(
        "retries-without-an-attempt-count",
        "a batch that is sent again says which attempt it is",
        "aggregator/replicas/engine.py",
        "        attempt=batch.attempt,\n        isolate",
        "        attempt=0,\n        isolate",
        (f"{_FAILED}::test_a_batch_that_is_sent_again_says_which_attempt_it_is",),
    ),
    Build(
        "does-not-isolate-suspects",
        "part of a batch that failed twice runs alone on its server",
        "aggregator/replicas/engine.py",
        "        isolate=batch.isolated,\n",
        "        isolate=False,\n",
        (f"{_FAILED}::test_what_failed_twice_asks_to_be_run_alone",),
    ),
    Build(
        "never-suspects-a-batch",
        "poison is isolated, and the rest of its batch is answered",
        "aggregator/scheduler/retries.py",
        "            self._suspects.add(again)\n",
        "            self._whole.append(again)\n",
        (f"{_NEIGHBOURS}::test_poison_is_cornered_and_on_replay_refused_while_its_batch_is_answered",),
    ),
    Build(
        "tries-known-poison-again",
        "known poison is refused, not tried again",
        "aggregator/scheduler/retries.py",
        "        return token_ids in self._quarantine\n",
        "        return False\n",
        (f"{_NEIGHBOURS}::test_poison_is_cornered_and_on_replay_refused_while_its_batch_is_answered",),
    ),
    Build(
        "does-not-dead-letter-poison",
        "an input that failed alone gets a reply, and its record becomes a dead letter",
        "aggregator/sources/kafka/source.py",
        "        elif request.failed and (failure := _internal(request)) is not None:\n",
        "        elif False and (failure := _internal(request)) is not None:\n",
        (f"{_NEIGHBOURS}::test_poison_is_cornered_and_on_replay_refused_while_its_batch_is_answered",),
    ),
    Build(
        "charges-a-busy-server-s-refusal",
        "a refusal by a busy server is not an attempt",
        "aggregator/pipeline.py",
        "        if isinstance(error, ModelServerBusy):\n",
        "        if False:\n",
        (f"{_FAILED}::test_a_busy_server_costs_no_attempt",),
    ),
    Build(
        "keeps-a-lost-server",
        "a server that lost a batch gets no batches until it answers again",
        "aggregator/pipeline.py",
        "            self._pool.suspect(engine)\n",
        "            pass\n",
        (f"{_EJECTED}::test_a_server_that_hangs_is_missed_by_nobody_and_returns",),
    ),
    Build(
        "answers-an-error-as-a-success",
        "an error for one query of a batch reaches that query",
        "aggregator/sources/completion.py",
        "                outcome = failure or Vector(",
        "                outcome = Vector(",
        (f"{_FAILED}::test_an_error_for_one_query_of_a_batch_reaches_that_query_only",),
    ),
    Build(
        "answers-what-expired-with-ok",
        "an input that expires in the queue is answered with DEADLINE_EXCEEDED",
        "aggregator/pipeline.py",
        "_EXPIRED = Failure(Code.DEADLINE_EXCEEDED,",
        "_EXPIRED = Failure(Code.OK,",
        (f"{_NEIGHBOURS}::test_what_expires_in_the_queue_is_told_at_once_and_never_computed",),
    ),
    Build(
        "tells-what-expired-with-the-next-batch",
        "an input that expires in the queue is answered at once, not when the next batch is packed",
        "aggregator/scheduler/dispatcher.py",
        "        due.expired = self.queue.expire(now_s) + self.retries.expire(now_s)\n",
        "",
        (f"{_NEIGHBOURS}::test_what_expires_in_the_queue_is_told_at_once_and_never_computed",),
    ),
    Build(
        "truncates-from-the-wrong-end",
        "truncation drops tokens from the requested end",
        "aggregator/admission/enqueue.py",
        "truncate_ids(token_ids, limit, keep_end=truncate == pb.TRUNCATE_START)",
        "truncate_ids(token_ids, limit, keep_end=truncate == pb.TRUNCATE_END)",
        (f"{_EMBED}::test_truncation_drops_tokens_from_the_end_asked_for_and_keeps_the_special_ones",),
    ),
    Build(
        "takes-what-is-too-long",
        "an input above the model's limit is refused unless it may be truncated",
        "aggregator/admission/enqueue.py",
        "    if isinstance(counted, bytes)"
        " and len(counted) > model_revision.description.max_input_tokens * _ID_BYTES:\n",
        "    if False:\n",
        (f"{_EMBED}::test_an_over_long_text_is_refused_unless_truncation_is_allowed",),
    ),
    Build(
        "writes-float16-big-endian",
        "vectors are little endian, also as float16",
        "aggregator/replicas/results.py",
        'matrix.astype("<f2")',
        'matrix.astype(">f2")',
        (f"{_EMBED}::test_an_encoding_has_its_size_and_its_error",),
    ),
    Build(
        "normalises-before-it-cuts",
        "a vector of fewer dimensions is a prefix, normalised afterwards",
        "aggregator/replicas/results.py",
        "    if dimensions:\n        matrix = matrix[:, :dimensions]\n    if normalize:\n"
        '        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))\n'
        "        matrix = matrix / np.maximum(norms, np.float32(1e-12))[:, None]\n",
        "    if normalize:\n"
        '        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))\n'
        "        matrix = matrix / np.maximum(norms, np.float32(1e-12))[:, None]\n"
        "    if dimensions:\n        matrix = matrix[:, :dimensions]\n",
        (f"{_EMBED}::test_fewer_dimensions_are_a_normalised_prefix",),
    ),
    Build(
        "mixes-revisions",
        "no answer mixes revisions",
        "aggregator/pipeline.py",
        "            unroute(request)\n",
        "",
        (f"{_SERVERS}::test_a_request_that_is_half_answered_when_another_revision_takes_over_begins_anew",),
    ),
    Build(
        "believes-vectors-that-are-no-numbers",
        "a response with values that are not numbers is refused",
        "aggregator/replicas/answers.py",
        "    if not _is_finite(matrix):\n",
        "    if False:\n",
        (f"{_EJECTED}::test_a_server_that_answers_garbage_is_believed_by_nobody_and_returns",),
    ),
    Build(
        "does-not-compare-tokenizer-fingerprints",
        "a server whose tokenizer does not match its fingerprint gets no batches",
        "aggregator/admission/tokenizers/cache.py",
        "    if actual != fingerprint:\n",
        "    if False:\n",
        ("tests/unit/aggregator/admission/tokenizers/test_cache.py::test_files_of_another_fingerprint_are_refused",),
    ),
    Build(
        "takes-a-server-of-another-model",
        "a server of another model gets no batches",
        "aggregator/replicas/watch.py",
        "        if description.model != self._target.model:\n",
        "        if False:\n",
        (f"{_EJECTED}::test_a_server_of_another_model_or_tokenizer_gets_nothing_until_it_is_the_right_one",),
    ),
    Build(
        "stops-without-draining",
        "an aggregator that is stopped finishes the requests that it has taken in",
        "aggregator/pipeline.py",
        "        await self._completion.drained()\n",
        "",
        (f"{_LIFECYCLE}::test_an_aggregator_that_is_told_to_stop_drains_and_another_goes_on",),
    ),
)
