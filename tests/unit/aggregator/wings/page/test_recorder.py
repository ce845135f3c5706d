"""What happened lately is kept while somebody looks, within bounds, and not otherwise."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

from aggregator.errors import Code
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.replica_choice import SendReason
from aggregator.scheduler.work_item import Priority, Query, Task, WorkItem
from aggregator.wings.page.recorder import KEPT_S, MOST_BATCHES, MOST_REPLICAS, Recorder
from tests.support.fake_source import GRPC
from tests.support.faked_pipeline import CURVE
from tests.support.virtual_time import ManualClock

REPORT = StepReport(step_tokens=90, step_duration_s=0.02, queued_tokens=0, idle_before_s=0.0, staged_s=0.001)


class Owner:
    """A request that came at 9 s; of a generation, when its first token came."""

    source = GRPC
    received_s = 9.0

    def __init__(self, first_token_s: float | None) -> None:
        self.kind = SimpleNamespace(first_token_s=lambda _: inf if first_token_s is None else first_token_s)


def batch(name: str = "a:1", queries: int = 2, first_token_s: float | None = None) -> Batch:
    """Sent at 10 s, of queries that were queued at 9 s."""
    items = [
        WorkItem(b"", 10, [Query(Owner(first_token_s), 0, Priority.DEFAULT, "", 9.0, 99.0)], Priority.DEFAULT)
        for _ in range(queries)
    ]
    replica = Replica(name, CURVE, 100, ReplicaPolicy())
    return Batch("b", items, 10 * queries, replica, SendReason.FULL, None, 10.0, 1.0, 100)


def test_nothing_is_kept_while_nobody_looks() -> None:
    recorder = Recorder(ManualClock(10.0))
    recorder.batch_done(batch(), Task.EMBED, REPORT, 10.1)
    recorder.batch_failed(batch(), Task.EMBED, Code.INTERNAL, 10.1)
    recorder.answered("grpc", [0.1], 1)
    recorder.look()
    assert not recorder.kept()
    assert not recorder.take_new()
    assert not any(recorder.take())


def test_batches_are_kept_a_minute_from_a_look_and_latencies_two_seconds() -> None:
    clock = ManualClock(10.0)
    recorder = Recorder(clock)
    recorder.look()
    clock.now_s = 13.0
    recorder.batch_done(batch(), Task.EMBED, REPORT, 13.0)
    recorder.answered("grpc", [0.1], 1)
    assert len(recorder.kept()) == 1
    recorder.look()
    assert not any(recorder.take())
    clock.now_s = 13.0 + KEPT_S
    recorder.batch_done(batch(), Task.EMBED, REPORT, clock.now_s)
    recorder.look()
    assert not recorder.kept()


def test_the_time_to_the_first_token_is_of_generations_this_batch_began() -> None:
    recorder = Recorder(ManualClock(10.0))
    recorder.look()
    for first_token_s in (10.5, 8.0, inf):
        recorder.batch_done(batch(queries=1, first_token_s=first_token_s), Task.GENERATE, REPORT, 10.6)
    assert recorder.take().first_tokens_s == [1.5]
    assert not any(recorder.take())


def test_what_is_kept_is_bounded_for_each_server_and_in_servers() -> None:
    recorder = Recorder(ManualClock(10.0))
    recorder.look()
    for _ in range(MOST_BATCHES + 1):
        recorder.batch_done(batch(queries=1), Task.EMBED, REPORT, 10.0)
    assert len(recorder.kept()) == MOST_BATCHES
    for number in range(MOST_REPLICAS):
        recorder.batch_done(batch(f"pod-{number}:1", queries=1), Task.EMBED, REPORT, 10.0)
    kept = recorder.kept()
    assert len(kept) == MOST_REPLICAS
    assert "a:1" not in {record.replica for record in kept}
