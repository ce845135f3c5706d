"""Faults in what comes from Kafka and goes to it: fetches, commits, rebalances, replies, dead letters."""

from __future__ import annotations

from tests.broken.build import Build

_PORTS = "tests/contract/test_kafka_ports.py"
_GROUP = "tests/integration/kafka/test_group.py"
_TRANSACTIONS = "tests/integration/kafka/test_transactions.py"
_MADE_AGAIN = "tests/integration/kafka/test_made_again.py"
_REPLIES = "tests/unit/aggregator/sources/kafka/test_replies.py"
_CLIENT = "tests/integration/kafka/test_client_faults.py"
_CORRUPT = "tests/unit/aggregator/sources/kafka/consumer/test_corrupt.py"
_LOGS = "tests/integration/kafka/test_broken_logs.py"
_RIGHT = "tests/integration/aggregator/test_right.py"
_LIFECYCLE = "tests/integration/aggregator/test_lifecycle.py"
_WAY = "tests/integration/kafka/test_path.py"
_PATH = "tests/unit/aggregator/sources/kafka/test_source.py"
_LETTERS = "tests/integration/aggregator/test_bad_input.py"

BUILDS = (
    Build(
        "commits-what-was-only-read",
        "an offset is committed only after its outcome",
        "aggregator/sources/kafka/consumer/committed_offset.py",
        "        self._end = offset + 1\n        return in_flight\n",
        "        self._end = offset + 1\n        self.complete(in_flight)\n        return in_flight\n",
        (f"{_RIGHT}::test_an_offset_is_committed_only_after_its_reply",),
    ),
    Build(
        "acknowledges-before-the-broker",
        "a record is completed once the broker has acknowledged its reply, not when the reply is sent",
        "aggregator/sources/kafka/source.py",
        "                async for delivered in self._producer.send(replies):\n",
        "                for request in live:\n"
        "                    record_of(request).committed_offset.complete(record_of(request))\n"
        "                async for delivered in self._producer.send(replies):\n"
        "                    delivered = [(position, None) for position, _ in delivered]\n",
        (f"{_WAY}::test_a_record_is_committed_once_the_broker_has_its_reply_and_not_before",),
    ),
    Build(
        "commits-one-too-far-on-revoke",
        "a revoked partition is committed up to its first unfinished record and no further",
        "aggregator/sources/kafka/consumer/partitions.py",
        "            partition.tp: partition.committed_offset.position\n",
        "            partition.tp: partition.committed_offset.position + self.over\n",
        (f"{_PORTS}::test_what_is_given_back_is_committed_up_to_its_first_unfinished_record",),
    ),
    Build(
        "commits-past-a-gap",
        "the committed offset stays at the first unfinished record, whatever later records are completed",
        "aggregator/sources/kafka/consumer/committed_offset.py",
        "        return self._in_flight[0].offset if self._in_flight else self._end\n",
        "        return self._highest_completed + 1 if self._in_flight else self._end\n",
        (f"{_PORTS}::test_the_commit_stands_at_the_first_unfinished_record_and_a_successor_goes_on_there",),
    ),
    Build(
        "drops-its-work-when-revoked",
        "in-flight records of a revoked partition are waited for",
        "aggregator/sources/kafka/consumer/membership.py",
        "            await self._drain(assignment)\n",
        "            for each in assignment.partitions.values():\n"
        "                for in_flight in tuple(each.committed_offset._in_flight):\n"
        "                    each.committed_offset.complete(in_flight)\n",
        (f"{_PORTS}::test_a_second_member_takes_over_only_what_the_first_has_drained",),
    ),
    Build(
        "gives-back-without-draining",
        "a member drains before its partitions are revoked, so that nothing comes twice",
        "aggregator/sources/kafka/consumer/membership.py",
        "            await self._drain(assignment)\n",
        "",
        (f"{_GROUP}::test_a_storm_of_rebalances_loses_nothing_and_takes_nothing_back",),
    ),
    Build(
        "gives-back-without-committing",
        "drained records are committed before their partition is revoked",
        "aggregator/sources/kafka/consumer/membership.py",
        "            await self._commit(assignment)\n        finally:\n",
        "            pass\n        finally:\n",
        (f"{_PORTS}::test_what_is_given_back_is_committed_up_to_its_first_unfinished_record",),
    ),
    Build(
        "no-fence-after-a-rebalance",
        "completing a record of a former assignment has no effect",
        "aggregator/sources/kafka/consumer/committed_offset.py",
        "        if in_flight.completed or self.fenced:\n",
        "        if in_flight.completed:\n",
        (
            "tests/unit/aggregator/sources/kafka/consumer/test_committed_offset.py::test_after_the_fence_nothing_moves_any_more",
        ),
    ),
    Build(
        "completes-on-fence",
        "records that are not completed at a revocation are reported, and stay unfinished",
        "aggregator/sources/kafka/consumer/committed_offset.py",
        "        unfinished = tuple(in_flight for in_flight in self._in_flight if not in_flight.completed)\n",
        "        unfinished = ()\n",
        (f"{_PORTS}::test_what_is_not_drained_in_time_is_fenced_told_and_delivered_again",),
    ),
    Build(
        "answers-what-it-gave-back",
        "a record of a revoked partition is left to the new owner",
        "aggregator/sources/kafka/source.py",
        "        live = [request for request in requests if not record_of(request).committed_offset.fenced]\n",
        "        live = list(requests)\n",
        (f"{_PATH}::test_what_was_given_back_is_left_unanswered_to_its_new_owner",),
    ),
    Build(
        "commits-under-a-newer-generation",
        "a commit carries the generation that its partitions were assigned in",
        "aggregator/sources/kafka/consumer/membership.py",
        "await self._member.commit(assignment.generation, assignment.member_id, offsets)",
        "await self._member.commit(self._member.generation, self.assignment.member_id, offsets)",
        (f"{_GROUP}::test_a_member_that_was_put_out_takes_nothing_back_from_a_group_that_is_empty_now",),
    ),
    Build(
        "starts-at-the-end-of-the-log",
        "a partition that the group never read is read from its start",
        "aggregator/sources/kafka/consumer/membership.py",
        "partial(self._member.log_starts, [tp])",
        "partial(self._member.log_ends, [tp])",
        (f"{_PORTS}::test_every_record_comes_once_and_in_order_as_it_was_written",),
    ),
    Build(
        "does-not-commit-where-it-starts",
        "a start position is committed, though nothing is completed yet",
        "aggregator/sources/kafka/consumer/membership.py",
        "            self._start(assignment, tp, topic_id, starts[tp], None)\n",
        "            self._start(assignment, tp, topic_id, starts[tp], starts[tp])\n",
        (f"{_PORTS}::test_a_start_position_is_committed_before_anything_is_completed",),
    ),
    Build(
        "reads-what-is-held",
        "a paused topic is not delivered, while others are",
        "aggregator/sources/kafka/consumer/partitions.py",
        "            if partition.fetched and partition.tp.topic not in paused_topics\n",
        "            if partition.fetched\n",
        (f"{_GROUP}::test_what_was_being_read_when_its_topic_was_held_waits_too",),
    ),
    Build(
        "never-pauses-a-partition",
        "a partition above its commit span is paused",
        "aggregator/sources/kafka/consumer/partitions.py",
        "            if not partition.over_span\n",
        "            if partition\n",
        (f"{_PORTS}::test_only_the_partition_over_its_span_cap_waits",),
    ),
    Build(
        "overlooks-a-heartbeat-that-ended",
        "a member whose heartbeats have ended joins again",
        "aggregator/sources/kafka/consumer/membership.py",
        "            if failure is not None:\n                raise failure\n",
        "",
        (f"{_CLIENT}::test_intake_joins_anew_when_a_task_of_the_client_dies",),
    ),
    Build(
        "is-ready-though-nobody-answers-it",
        "an aggregator is ready only while it is a member of its group",
        "aggregator/sources/kafka/consumer/group.py",
        " and time.monotonic() - self._heartbeat_s <= self._settings.client.session_timeout_s\n",
        "\n",
        (f"{_CLIENT}::test_intake_is_not_ready_once_heartbeats_have_gone_unanswered_for_the_sessions_time",),
    ),
    Build(
        "loses-in-silence-to-retention",
        "records that retention deleted before they were read are counted",
        "aggregator/sources/kafka/consumer/reader.py",
        "            self._observer.records_lost(tp.topic, start - position)\n",
        "",
        (f"{_PORTS}::test_records_that_retention_took_are_counted",),
    ),
    Build(
        "fetches-topics-by-name",
        "a position belongs to the topic that it was read from, not to a later topic of the same name",
        "aggregator/sources/kafka/consumer/topic_ids.py",
        "        if NO_ID in names:\n",
        "        if names:\n",
        (f"{_MADE_AGAIN}::test_a_topic_made_again_and_filled_beyond_the_position_is_read_from_its_start",),
    ),
    Build(
        "takes-the-offsets-of-a-deleted-topic",
        "offsets of a deleted topic do not apply to a later topic of the same name",
        "aggregator/sources/kafka/consumer/offsets.py",
        "= -1 if of_another else offset\n",
        "= offset\n",
        (f"{_MADE_AGAIN}::test_offsets_of_a_topic_that_was_deleted_while_nobody_read_count_for_nothing",),
    ),
    Build(
        "loses-in-silence-with-a-topic",
        "records that were deleted with their topic are counted",
        "aggregator/sources/kafka/consumer/reader.py",
        "            self._observer.records_lost(tp.topic, lost)\n",
        "            pass\n",
        (
            f"{_MADE_AGAIN}::test_what_nobody_had_read_of_a_deleted_topic_is_counted_and_what_is_under_way_is_not_fenced",
        ),
    ),
    Build(
        "answers-what-was-aborted-where-a-name-is-odd",
        "a record batch that is parsed here is skipped if its transaction was aborted",
        "aggregator/sources/kafka/consumer/corrupt.py",
        "who == producer_id and first <= base",
        "who == producer_id and first < base",
        (f"{_CORRUPT}::test_records_of_a_transaction_are_read_unless_it_was_aborted",),
    ),
    Build(
        "steps-over-corrupt-batches-unasked",
        "a batch that cannot be read holds its partition, unless skipping is allowed",
        "aggregator/sources/kafka/consumer/reader.py",
        "await self._offset_after(partition) if self._settings.skip_corrupt_batches else None",
        "await self._offset_after(partition)",
        (f"{_LOGS}::test_a_corrupt_batch_holds_its_partition_only_and_is_stepped_over_where_allowed",),
    ),
    Build(
        "reads-uncommitted",
        "records of an aborted transaction are not delivered",
        "aggregator/sources/kafka/consumer/group.py",
        '_ISOLATION = "read_committed"\n',
        '_ISOLATION = "read_uncommitted"\n',
        (f"{_TRANSACTIONS}::test_what_was_committed_is_handed_out_and_what_was_aborted_is_not",),
    ),
    Build(
        "ignores-a-failed-produce",
        "a record whose reply the broker refuses becomes a dead letter",
        "aggregator/sources/kafka/source.py",
        "        if error is not None:\n            letter =",
        "        if False:\n            letter =",
        (f"{_WAY}::test_a_reply_that_the_broker_refuses_is_replaced_by_a_dead_letter",),
    ),
    Build(
        "says-that-a-failed-write-went-well",
        "each record gets its own delivery result",
        "aggregator/sources/kafka/producer/producer.py",
        "        if len(records) == 1:\n            return [error]\n",
        "        if len(records) == 1:\n            return [None]\n",
        (f"{_PORTS}::test_each_record_has_its_own_word",),
    ),
    Build(
        "keeps-a-producer-identity-after-a-failure",
        "a refused record does not end its partition",
        "aggregator/sources/kafka/producer/writer.py",
        "            if numbered:\n                internals.renew_identity(producer)\n",
        "",
        (f"{_CLIENT}::test_a_refused_record_does_not_end_its_partition",),
    ),
    Build(
        "writes-without-idempotence",
        "replies are written idempotently",
        "aggregator/sources/kafka/producer/writer.py",
        "                enable_idempotence=True,\n",
        "                enable_idempotence=False,\n",
        (f"{_CLIENT}::test_a_batch_whose_acknowledgement_was_lost_is_in_the_log_once",),
    ),
    Build(
        "spreads-keys-its-own-way",
        "a key goes to the partition that every Kafka client chooses",
        "aggregator/sources/kafka/producer/partitioner.py",
        "_SEED = 0x9747B28C\n",
        "_SEED = 0x9747B28D\n",
        (f"{_PORTS}::test_keys_and_named_partitions_decide_where_records_go",),
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
        "aggregator/sources/kafka/source.py",
        "        if refused.dead_letter or refused.route is None:\n",
        "        if refused.route is None:\n",
        (f"{_LETTERS}::test_bad_input_is_told_what_is_wrong_and_harms_no_neighbour[protobuf that is none]",),
    ),
    Build(
        "replies-to-another-partition",
        "a reply goes to the partition that its request names",
        "aggregator/sources/kafka/replies.py",
        "OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))\n",
        "OutgoingRecord(route.topic, None, record.key, value, route.headers))\n",
        (f"{_RIGHT}::test_a_reply_carries_key_routing_headers_and_format_of_its_request",),
    ),
    Build(
        "replies-to-another-topic",
        "a reply goes to the topic that its request names, if that is allowed",
        "aggregator/sources/kafka/codec.py",
        "    return ReplyRoute(topic, partition, json=False",
        "    return ReplyRoute(intake.route.topic, partition, json=False",
        (f"{_RIGHT}::test_a_reply_carries_key_routing_headers_and_format_of_its_request",),
    ),
    Build(
        "replies-under-another-key",
        "a reply carries its request's key",
        "aggregator/sources/kafka/replies.py",
        "OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))\n",
        "OutgoingRecord(route.topic, route.partition, request.request_id.encode(), value, route.headers))\n",
        (f"{_RIGHT}::test_a_reply_carries_key_routing_headers_and_format_of_its_request",),
    ),
    Build(
        "does-not-echo-headers",
        "routing and trace headers are echoed as they came",
        "aggregator/sources/kafka/codec.py",
        "[each for each in headers if each[0] in ECHOED]",
        "[each for each in headers if each[0] in ECHOED - {'tracestate'}]",
        (f"{_RIGHT}::test_a_reply_carries_key_routing_headers_and_format_of_its_request",),
    ),
    Build(
        "replies-to-topics-that-are-not-allowed",
        "a request may name only an allowed reply topic",
        "aggregator/sources/kafka/codec.py",
        "    if not intake.permits(topic):\n",
        "    if False:\n",
        (f"{_LETTERS}::test_bad_input_is_told_what_is_wrong_and_harms_no_neighbour[reply topic not allowed]",),
    ),
    Build(
        "one-reply-id-for-topics-of-one-name",
        "records of two successive topics of one name have different reply_ids",
        "aggregator/sources/kafka/replies.py",
        "{source.topic_id}",
        "",
        (f"{_REPLIES}::test_a_reply_id_is_the_record_s_the_request_s_and_the_group_s_own",),
    ),
    Build(
        "one-reply-id-for-all-groups",
        "two groups that read one topic reply with different reply_ids",
        "aggregator/sources/kafka/replies.py",
        "{group_id}",
        "",
        (f"{_REPLIES}::test_a_reply_id_is_the_record_s_the_request_s_and_the_group_s_own",),
    ),
    Build(
        "a-new-reply-id-each-time",
        "a replayed record gets the same reply_id",
        "aggregator/sources/kafka/replies.py",
        "hashlib.blake2b(told, digest_size",
        "hashlib.blake2b(told + str(id(told)).encode(), digest_size",
        (f"{_LIFECYCLE}::test_what_a_killed_aggregator_left_is_done_again_under_the_same_reply_ids",),
    ),
)
