"""Small faults to put into a copy of the tree, and the tests that must fail of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Build:
    """One fault: in `file`, `old` (which stands there once) becomes `new`.

    `rule` is what the fault breaks. Each of `tests` (path::name) must fail of it, and its name tells the rule.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def broken(self, source: str) -> str:
        """The file's text with the fault in it. Raises ValueError where the fault does not fit any more."""
        found = source.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: the text to replace stands {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)

    def put_into(self, tree: Path) -> None:
        file = tree / self.file
        file.write_text(self.broken(file.read_text()))


_PORTS = "tests/contract/test_kafka_ports.py"
_TRANSACTIONS = "tests/integration/kafka/test_transactions.py"
_LOGS = "tests/integration/kafka/test_broken_logs.py"
_RIGHT = "tests/integration/aggregator/test_right.py"
_LIFECYCLE = "tests/integration/aggregator/test_lifecycle.py"
_WAY = "tests/integration/kafka/test_path.py"
_LETTERS = "tests/integration/aggregator/test_bad_input.py"
_NEIGHBOURS = "tests/integration/aggregator/test_bad_neighbours.py"
_EJECTED = "tests/integration/pool/test_ejected.py"
_SERVERS = "tests/unit/aggregator/test_replicas_of_pipeline.py"
_RUNNER = "tests/unit/aggregator/test_generations.py"
_TEXT = "tests/unit/aggregator/test_generated_text.py"
_CONTRACT = "tests/integration/modelserver/test_contract.py"
_PROCESS = "tests/integration/modelserver/test_process.py"

BUILDS = (
    Build(
        "commits-what-was-only-read",
        "an offset is committed only after its outcome",
        "aggregator/sources/kafka/committed_offset.py",
        "        self._end = offset + 1\n        return in_flight\n",
        "        self._end = offset + 1\n        self.complete(in_flight)\n        return in_flight\n",
        (f"{_RIGHT}::test_an_offset_is_committed_only_after_its_reply",),
    ),
    Build(
        "acknowledges-before-the-broker",
        "a record is completed once the broker has acknowledged its reply, not when the reply is sent",
        "aggregator/sources/kafka/outcomes.py",
        "                async for delivered in self.producer.send(replies):\n",
        "                for request in live:\n"
        "                    record_of(request).committed_offset.complete(record_of(request))\n"
        "                async for delivered in self.producer.send(replies):\n"
        "                    delivered = [(position, None) for position, _ in delivered]\n",
        (f"{_WAY}::test_a_record_is_committed_once_the_broker_has_its_reply_and_not_before",),
    ),
    Build(
        "commits-past-a-gap",
        "the committed offset stays at the first unfinished record, whatever later records are completed",
        "aggregator/sources/kafka/committed_offset.py",
        "        return self._in_flight[0].offset if self._in_flight else self._end\n",
        "        return self._highest_completed + 1 if self._in_flight else self._end\n",
        (f"{_PORTS}::test_the_commit_stands_at_the_first_unfinished_record_and_a_successor_goes_on_there",),
    ),
    Build(
        "drops-its-work-when-revoked",
        "in-flight records of a revoked partition are waited for",
        "aggregator/sources/kafka/member.py",
        "            while self._loop.time() < until_s and",
        "            for each in self.partitions.values():\n"
        "                for in_flight in tuple(each.committed_offset._in_flight):\n"
        "                    each.committed_offset.complete(in_flight)\n"
        "            while self._loop.time() < until_s and",
        (f"{_PORTS}::test_a_second_member_takes_over_only_what_the_first_has_drained",),
    ),
    Build(
        "no-fence-after-a-rebalance",
        "completing a record of a former assignment has no effect",
        "aggregator/sources/kafka/committed_offset.py",
        "        if in_flight.completed or self.fenced:\n",
        "        if in_flight.completed:\n",
        ("tests/unit/aggregator/sources/kafka/test_committed_offset.py::test_after_the_fence_nothing_moves_any_more",),
    ),
    Build(
        "starts-at-the-end-of-the-log",
        "a partition that the group never read is read from its start",
        "aggregator/sources/kafka/member.py",
        "client.beginning_offsets([tp])",
        "client.end_offsets([tp])",
        (f"{_PORTS}::test_every_record_comes_once_and_in_order_as_it_was_written",),
    ),
    Build(
        "loses-the-neighbours-of-an-undecodable-record",
        "a record that cannot be decoded costs itself alone",
        "aggregator/sources/kafka/faults.py",
        "        records += found\n",
        "        records += [record for record in found if record.unreadable]\n",
        (f"{_LOGS}::test_a_header_name_that_is_not_utf8_costs_its_own_record_alone",),
    ),
    Build(
        "reads-uncommitted",
        "records of an aborted transaction are not delivered",
        "aggregator/sources/kafka/consumer.py",
        'isolation_level="read_committed"',
        'isolation_level="read_uncommitted"',
        (f"{_TRANSACTIONS}::test_what_was_committed_is_handed_out_and_what_was_aborted_is_not",),
    ),
    Build(
        "ignores-a-failed-produce",
        "a record whose reply the broker refuses becomes a dead letter",
        "aggregator/sources/kafka/outcomes.py",
        "        if error is not None:\n            letter =",
        "        if False:\n            letter =",
        (f"{_WAY}::test_a_reply_that_the_broker_refuses_is_replaced_by_a_dead_letter",),
    ),
    Build(
        "completes-a-dead-letter-before-it-is-written",
        "a dead letter that cannot be written holds the commit",
        "aggregator/sources/kafka/dead_letters.py",
        "        self._waiting.setdefault(topic, []).append(letter)\n",
        "        self._waiting.setdefault(topic, []).append(letter)\n"
        "        letter.in_flight.committed_offset.complete(letter.in_flight)\n",
        (f"{_WAY}::test_a_record_is_committed_once_the_broker_has_its_dead_letter_and_not_before",),
    ),
    Build(
        "answers-undecodable-records-only",
        "a record that cannot be decoded gets a reply and becomes a dead letter",
        "aggregator/sources/kafka/outcomes.py",
        "        if refused.dead_letter or refused.route is None:\n",
        "        if refused.route is None:\n",
        (f"{_LETTERS}::test_bad_input_is_told_what_is_wrong_and_harms_no_neighbour[protobuf that is none]",),
    ),
    Build(
        "a-new-reply-id-each-time",
        "a replayed record gets the same reply_id",
        "aggregator/sources/kafka/codec.py",
        "hashlib.blake2b(told, digest_size",
        "hashlib.blake2b(told + str(id(told)).encode(), digest_size",
        (f"{_LIFECYCLE}::test_what_a_killed_aggregator_left_is_done_again_under_the_same_reply_ids",),
    ),
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
BY_NAME: Mapping[str, Build] = {build.name: build for build in BUILDS}
