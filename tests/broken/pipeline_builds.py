"""Faults between intake and completion: routing, truncation, batches, retries, sharing out, encoding."""

from __future__ import annotations

from tests.broken.build import Build

_NEIGHBOURS = "tests/integration/aggregator/test_bad_neighbours.py"
_LIFECYCLE = "tests/integration/aggregator/test_lifecycle.py"
_EJECTED = "tests/integration/pool/test_ejected.py"
_SERVERS = "tests/unit/aggregator/test_replicas_of_pipeline.py"

BUILDS = (
    Build(
        "swaps-two-results",
        "each input gets its own vector",
        "aggregator/pipeline/completion.py",
        "Vector(completed, row, item.token_count",
        "Vector(completed, (row + 1) % len(batch.items), item.token_count",
        ("tests/unit/aggregator/test_pipeline.py::test_every_input_of_a_request_is_answered_in_its_place",),
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
        "does-not-dead-letter-poison",
        "an input that failed alone gets a reply, and its record becomes a dead letter",
        "aggregator/sources/kafka/outcomes.py",
        "        elif request.failed and (failure := internal_failure(request)) is not None:\n",
        "        elif False and (failure := internal_failure(request)) is not None:\n",
        (f"{_NEIGHBOURS}::test_poison_is_cornered_and_on_replay_refused_while_its_batch_is_answered",),
    ),
    Build(
        "keeps-a-lost-server",
        "a server that lost a batch gets no batches until it answers again",
        "aggregator/pipeline/run.py",
        "            self.pool.suspect(engine)\n",
        "            pass\n",
        (f"{_EJECTED}::test_a_server_that_hangs_is_missed_by_nobody_and_returns",),
    ),
    Build(
        "answers-what-expired-with-ok",
        "an input that expires in the queue is answered with DEADLINE_EXCEEDED",
        "aggregator/pipeline/pipeline.py",
        "_EXPIRED = Failure(Code.DEADLINE_EXCEEDED,",
        "_EXPIRED = Failure(Code.OK,",
        (f"{_NEIGHBOURS}::test_what_expires_in_the_queue_is_told_at_once_and_never_computed",),
    ),
    Build(
        "mixes-revisions",
        "no answer mixes revisions",
        "aggregator/pipeline/pipeline.py",
        "            unroute(request)\n",
        "",
        (f"{_SERVERS}::test_a_request_that_is_half_answered_when_another_revision_takes_over_begins_anew",),
    ),
    Build(
        "stops-without-draining",
        "an aggregator that is stopped finishes the requests that it has taken in",
        "aggregator/pipeline/pipeline.py",
        "        await self._completion.drained()\n",
        "",
        (f"{_LIFECYCLE}::test_an_aggregator_that_is_told_to_stop_drains_and_another_goes_on",),
    ),
)
