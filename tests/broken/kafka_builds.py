"""Faults in what comes from Kafka and goes to it: fetches, commits, rebalances, replies, dead letters."""

from __future__ import annotations

from tests.broken.build import Build

_PORTS = "tests/contract/test_kafka_ports.py"
_TRANSACTIONS = "tests/integration/kafka/test_transactions.py"
_LOGS = "tests/integration/kafka/test_broken_logs.py"
_RIGHT = "tests/integration/aggregator/test_right.py"
_LIFECYCLE = "tests/integration/aggregator/test_lifecycle.py"
_WAY = "tests/integration/kafka/test_path.py"
_LETTERS = "tests/integration/aggregator/test_bad_input.py"

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
)
