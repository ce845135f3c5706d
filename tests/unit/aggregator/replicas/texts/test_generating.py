"""Texts begin in batches, end by themselves, and go on elsewhere: what they hold at a server is given back once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.quotas import QuotaPolicy, Quotas
from aggregator.errors import Code, ModelServerLost
from aggregator.observability.metrics import Metrics
from aggregator.observability.metrics_buffer import MetricsBuffer
from aggregator.observability.tracing import Tracing
from aggregator.replicas import engine as ports
from aggregator.replicas.engine import GeneratingLoad
from aggregator.replicas.texts.generating import Generating
from aggregator.replicas.texts.text import Text
from aggregator.request import Failure, Options, Request
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.replica import ReplicaPolicy
from aggregator.scheduler.work_item import Priority, Query
from protos.generation.v1 import generation_pb2 as pb
from tests.fakes.pool import FakePool
from tests.fakes.sources import GRPC, AnyOrigin
from tests.fakes.tokenizers import FakeTokenizer
from tests.fakes.world import DESCRIPTION, FakeCounting

COSTS = ports.Generating(fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001, kv_tokens=4096, max_sequences=8)
GENERATING = replace(DESCRIPTION, generating=COSTS)
TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMPT = b"\1\0\0\0\2\0\0\0"


class Letters:
    """Token id n is the letter of that code."""

    def step(self, token_id: int) -> str:
        return chr(token_id)


@dataclass(eq=False)
class FakeTextEngine:
    """Notes what it is asked for; the test says what becomes of it."""

    started: list[ports.Sequence] = field(default_factory=list[ports.Sequence])
    aborted: list[ports.Sequence] = field(default_factory=list[ports.Sequence])
    description: ports.ServerDescription = GENERATING
    load: GeneratingLoad | None = None

    def generate(self, sequence: ports.Sequence) -> None:
        self.started.append(sequence)

    def abort(self, sequence: ports.Sequence) -> None:
        self.aborted.append(sequence)

    async def embed(self, batch: ports.OutgoingBatch, *, timeout_s: float) -> ports.StepResult:
        raise AssertionError((batch, timeout_s))


class Desk:
    """One revision on two servers."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        words = FakeTokenizer()
        self.revision = ModelRevision(GENERATING, words, FakeCounting(words), DispatchPolicy())
        for name in ("a", "b"):
            self.revision.dispatcher.replicas[name] = GeneratingReplica(
                name, DESCRIPTION.curve, 500, ReplicaPolicy(), kv_tokens=4096, max_sequences=8
            )
        self.engines = {name: FakeTextEngine(description=replace(GENERATING, address=name)) for name in ("a", "b")}
        self.now_s = 100.0
        self.pool = FakePool()
        self.completed: list[Request] = []
        self.buffer = MetricsBuffer()
        self.generating = Generating(
            self.pool,
            AdmissionLimits(Quotas(QuotaPolicy())),
            Metrics(self.buffer),
            Tracing(tracer, enabled=tracer is not None),
            complete=self.completed.extend,
            changed=lambda _: None,
            clock=lambda: self.now_s,
            jitter=lambda: 0.0,
        )

    def ask(self, deadline_s: float = inf, **sampling: int) -> Request:
        """Queue a request."""
        text = Text(pb.Sampling(**sampling))  # type: ignore[arg-type]  # as the test says
        text.begin("r1", PROMPT, Letters())
        request = Request(
            request_id="q",
            model="m",
            model_revision="",
            inputs=["p"],
            options=Options(),
            priority=Priority.DEFAULT,
            source=GRPC,
            tenant="",
            received_s=self.now_s,
            deadline_s=deadline_s,
            origin=AnyOrigin(),
            outcomes=[None],
            remaining=1,
            text=text,
        )
        query = Query(request, 0, Priority.DEFAULT, "", self.now_s, deadline_s)
        self.revision.dispatcher.queue.put(query, PROMPT, 2)
        return request

    def dispatch(self) -> list[FakeTextEngine]:
        """Begin what is due; at which servers."""
        batches = self.revision.dispatcher.due(self.now_s, max_items=8).batches
        for batch in batches:
            self.generating.begin(self.revision, self.engines[batch.replica.name], batch)
        return [self.engines[batch.replica.name] for batch in batches]

    def seats(self) -> int:
        return sum(replica.seats for replica in self.revision.dispatcher.replicas.values())


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("t")
    provider.shutdown()


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_text_gains_tokens_and_ends(desk: Desk) -> None:
    request = desk.ask(max_tokens=3)
    (engine,) = desk.dispatch()
    (sequence,) = engine.started
    assert (sequence.token_ids, sequence.sampling.max_tokens) == (PROMPT, 3)
    assert desk.seats() == 15
    sequence.extend([65], (), 0)
    sequence.extend([66, 67], (), 0)
    sequence.end(cut=True)
    assert desk.completed == [request]
    assert request.text is not None
    assert request.text.characters == "ABC"
    assert (desk.seats(), len(desk.generating)) == (16, 0)


async def test_a_batch_is_out_until_each_of_its_texts_has_a_token_or_its_end(desk: Desk) -> None:
    desk.ask(max_tokens=5)
    desk.ask(max_tokens=5)
    (engine,) = desk.dispatch()
    replica = next(each for each in desk.revision.dispatcher.replicas.values() if each.batches_out)
    first, second = engine.started
    first.extend([65], (), 0)
    assert replica.batches_out == 1
    second.fail(Code.INVALID_ARGUMENT, "a token id lies outside the vocabulary")
    assert replica.batches_out == 0
    assert [each.code for each in desk.completed] == [Code.INVALID_ARGUMENT]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_text_goes_on_elsewhere_from_where_it_was(desk: Desk, begun: bool) -> None:
    request = desk.ask(max_tokens=5, min_tokens=4)
    (engine,) = desk.dispatch()
    (sequence,) = engine.started
    if begun:
        sequence.extend([65, 66], (), 0)
    sequence.lost(ModelServerLost("gone"))
    await asyncio.sleep(0)
    assert desk.pool.suspects == [engine]
    desk.now_s += 1.0
    (other,) = desk.dispatch()
    assert other is not engine
    (again,) = other.started
    taken = 2 if begun else 0
    assert again.token_ids == PROMPT + bytes([65, 0, 0, 0, 66, 0, 0, 0])[: 4 * taken]
    assert (again.sampling.max_tokens, again.sampling.min_tokens) == (5 - taken, 4 - taken)
    again.extend([67], (), 0)
    again.end(cut=False)
    assert request.text is not None
    assert (request.text.characters, request.text.attempts) == ("AB"[:taken] + "C", 1)
    assert desk.seats() == 16


async def test_one_that_is_given_up_while_it_is_lost_gives_back_its_place_once(desk: Desk) -> None:
    request = desk.ask(max_tokens=5)
    (engine,) = desk.dispatch()
    (sequence,) = engine.started
    sequence.lost(ModelServerLost("gone"))
    desk.generating.give_up(request)
    await asyncio.sleep(0)
    assert desk.seats() == 16


async def test_an_engine_that_fails_beneath_a_text_is_not_suspected_of_being_gone(desk: Desk) -> None:
    desk.ask(max_tokens=5)
    (engine,) = desk.dispatch()
    engine.started[0].fail(Code.INTERNAL, "the engine failed")
    await asyncio.sleep(0)
    assert not desk.pool.suspects
    assert len(desk.revision.dispatcher.retries) == 1


async def die_beneath(desk: Desk, tokens: int, *, restarted: bool = True) -> list[FakeTextEngine]:
    """Each server is lost once the text has gained so many tokens there; where it was until it was given up."""
    died: list[FakeTextEngine] = []
    while not desk.completed:
        for engine in desk.dispatch():
            if desk.completed:
                break
            sequence = engine.started[-1]
            for _ in range(tokens):
                sequence.extend([65], (), 0)
            sequence.lost(ModelServerLost("gone"))
            died.append(engine)
        await asyncio.sleep(0)
        if restarted:
            died[-1].description = replace(died[-1].description, instance_id=str(len(died)))
        desk.now_s += 1.0
    return died


@pytest.mark.parametrize("tokens", [0, 1, 31])
async def test_one_beneath_which_two_servers_die_is_given_up_once_it_fails_alone(desk: Desk, tokens: int) -> None:
    request = desk.ask(max_tokens=500)
    first, second, alone = await die_beneath(desk, tokens)
    assert first is not second
    assert alone is second
    assert (desk.completed, request.code) == ([request], Code.INTERNAL)
    assert desk.revision.dispatcher.retries.is_quarantined(PROMPT)
    assert desk.seats() == 16


async def test_one_that_gains_tokens_at_each_server_before_it_dies_is_tried_longer(desk: Desk) -> None:
    request = desk.ask(max_tokens=5000)
    assert len(await die_beneath(desk, 32)) == 17
    assert request.code is Code.INTERNAL


async def test_lost_connections_do_not_prove_that_a_text_ends_its_servers(desk: Desk) -> None:
    request = desk.ask(max_tokens=500)
    assert len(await die_beneath(desk, 1, restarted=False)) == 17
    assert request.code is Code.INTERNAL


async def test_an_engine_that_fails_beneath_a_text_alone_proves_it(desk: Desk) -> None:
    desk.ask(max_tokens=500)
    for _ in range(3):
        (engine,) = desk.dispatch()
        engine.started[-1].fail(Code.INTERNAL, "the engine failed")
        await asyncio.sleep(0)
        desk.now_s += 1.0
    assert [request.code for request in desk.completed] == [Code.INTERNAL]


async def test_suspects_go_apart_and_the_rest_waits_until_they_have_gained_some_tokens(desk: Desk) -> None:
    asked = [desk.ask(max_tokens=500) for _ in range(2)]
    for _ in range(2):
        for engine in desk.dispatch():
            for sequence in tuple(engine.started):
                sequence.extend([65], (), 0)
                sequence.lost(ModelServerLost("gone"))
            engine.started.clear()
        await asyncio.sleep(0)
        desk.now_s += 1.0
    (engine,) = desk.dispatch()
    (alone,) = engine.started
    for _ in range(32):
        alone.extend([65], (), 0)
        assert not desk.dispatch()
    alone.extend([65], (), 0)
    assert desk.dispatch() == [engine]
    engine.started[1].end(cut=False)
    alone.end(cut=False)
    assert [request.code for request in asked] == [Code.OK] * 2


async def test_a_late_text_ends_with_what_there_is_of_it(desk: Desk) -> None:
    request = desk.ask(deadline_s=desk.now_s + 0.02, max_tokens=500)
    (engine,) = desk.dispatch()
    engine.started[0].extend([65], (), 0)
    await asyncio.sleep(0.05)
    assert engine.aborted == engine.started
    assert request.code is Code.DEADLINE_EXCEEDED
    assert request.text is not None
    assert request.text.characters == "A"


async def test_a_stop_string_aborts_what_would_go_on(desk: Desk) -> None:
    request = desk.ask(max_tokens=500)
    assert request.text is not None
    request.text.sampling.stop.append("B")
    (engine,) = desk.dispatch()
    engine.started[0].extend([65], (), 0)
    engine.started[0].extend([66], (), 0)
    assert engine.aborted == engine.started
    assert (desk.completed, request.text.characters) == ([request], "A")


async def test_nothing_is_begun_for_who_has_gone(desk: Desk) -> None:
    request = desk.ask(max_tokens=5)
    batch = desk.revision.dispatcher.due(desk.now_s, max_items=8).batches[0]
    batch.items[0].waiters[0].item = None
    request.fail(Failure(Code.CANCELLED, "gone"))
    desk.generating.begin(desk.revision, desk.engines[batch.replica.name], batch)
    assert not desk.engines[batch.replica.name].started
    assert not batch.replica.batches_out


async def test_what_a_server_says_of_its_room_counts(desk: Desk) -> None:
    desk.ask(max_tokens=5)
    (engine,) = desk.dispatch()
    engine.load = GeneratingLoad(free_kv_tokens=64, running=8, waiting_tokens=0, step_duration_s=0.01)
    engine.started[0].extend([65], (), 0)
    full = [each for each in desk.revision.dispatcher.replicas.values() if not each.seats]
    assert len(full) == 1


async def test_each_text_is_a_span_of_its_callers_trace_from_its_dispatch_to_its_end(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    desk = Desk(tracer)
    whole, late = desk.ask(max_tokens=3), desk.ask(deadline_s=desk.now_s + 9.0)
    whole.traceparent = f"00-{TRACE}-b7ad6b7169203331-01".encode()
    (engine,) = desk.dispatch()
    sequences: dict[Request, Any] = {each.request: each for each in engine.started}  # type: ignore[attr-defined]
    desk.now_s += 2.0
    sequences[whole].extend([65], (), 0)
    desk.now_s += 3.0
    sequences[whole].end(cut=True)
    desk.generating.late(sequences[late])
    ended, failed = exporter.get_finished_spans()
    assert ended.context is not None
    assert (ended.name, f"{ended.context.trace_id:032x}") == ("text_completion m", TRACE)
    assert ended.start_time is not None
    assert ended.end_time is not None
    assert ended.end_time - ended.start_time == pytest.approx(5e9)
    (event,) = ended.events
    assert event.name == "first token"
    assert event.timestamp - ended.start_time == pytest.approx(2e9)
    assert ended.attributes is not None
    assert (ended.attributes["gen_ai.usage.input_tokens"], ended.attributes["gen_ai.usage.output_tokens"]) == (2, 1)
    assert failed.attributes is not None
    assert (failed.attributes["error.type"], late.code) == ("DEADLINE_EXCEEDED", Code.DEADLINE_EXCEEDED)
    assert not failed.events


def test_the_only_server_that_comes_back_takes_its_texts_on_though_it_measured_other_costs() -> None:
    revision = Desk().revision
    slower = replace(COSTS, fixed_s=2 * COSTS.fixed_s, kv_tokens=COSTS.kv_tokens - 16)
    assert not revision.engines
    assert revision.takes(replace(GENERATING, instance_id="2", generating=slower, step_token_capacity=9))
    assert not revision.takes(replace(GENERATING, generating=None))
    assert not revision.takes(replace(GENERATING, tokenizer_fingerprint="another"))
