"""Generations begin in batches, end by themselves, and resume elsewhere: the room that they take is freed once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from aggregator import model_server as ports
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code, EngineFailed, ModelServerLost, server_error
from aggregator.model_server import GenerationLoad
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.execute import BatchExecutor
from aggregator.request.request import Failure, Request
from aggregator.scheduler.dispatcher import Batch, DispatchPolicy
from aggregator.scheduler.replica import ReplicaPolicy
from aggregator.scheduler.retries import RetryPolicy
from aggregator.scheduler.work_item import Priority, Query
from aggregator.wings.generation.costs import GenerationCosts
from aggregator.wings.generation.generation import Generation, generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.replica import GeneratingReplica
from aggregator.wings.generation.runner import SequenceRunner
from aggregator.wings.generation.server import ServerSequence
from aggregator.wings.tracing.spans import SpanTracing
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_pool import FakePool
from tests.support.fake_source import any_request
from tests.support.fake_tokenizer import FakeTokenizer, Letters
from tests.support.faked_pipeline import DESCRIPTION, FakeCounting

COSTS = GenerationCosts(fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001, kv_tokens=4096, max_sequences=8)
GENERATING = replace(DESCRIPTION, details=COSTS)
TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMPT = b"\1\0\0\0\2\0\0\0"


async def turns() -> None:
    """Let the tasks of batches notice what their sequences report."""
    for _ in range(3):
        await asyncio.sleep(0)


@dataclass(eq=False)
class FakeGenerationEngine:
    """Notes what it is asked for; the test says what becomes of it."""

    started: list[ServerSequence] = field(default_factory=list[ServerSequence])
    aborted: list[ServerSequence] = field(default_factory=list[ServerSequence])
    description: ports.ServerDescription = GENERATING
    probes: int = 0
    unwell: bool = False
    load: GenerationLoad | None = None
    last_steps: list[GenerationLoad] = field(default_factory=list[GenerationLoad])

    def generate(self, sequence: ServerSequence) -> None:
        self.started.append(sequence)

    def abort(self, sequence: ServerSequence) -> None:
        self.aborted.append(sequence)

    async def probe(self, token_ids: bytes, *, timeout_s: float) -> None:
        self.probes += 1
        if self.unwell:
            raise ModelServerLost(f"no token after {token_ids!r} within {timeout_s:g} s")

    async def embed(self, batch: ports.OutgoingBatch, *, timeout_s: float) -> ports.StepResult:
        raise AssertionError((batch, timeout_s))


class TwoServers:
    """One revision on two servers."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        words = FakeTokenizer()
        self.revision = ModelRevision(GENERATING, words, FakeCounting(words), DispatchPolicy())
        for name in ("a", "b"):
            self.revision.dispatcher.replicas[name] = GeneratingReplica(
                name, DESCRIPTION.curve, 500, ReplicaPolicy(), kv_tokens=4096, max_sequences=8
            )
        self.engines = {
            name: FakeGenerationEngine(description=replace(GENERATING, address=name)) for name in ("a", "b")
        }
        self.now_s = 100.0
        self.pool = FakePool()
        self.completed: list[Request] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.buffer = MetricsBuffer()
        self.runner = BatchExecutor(
            self.pool,
            AdmissionLimits(),
            Metrics(self.buffer),
            tracing or Tracing(),
            complete=self.completed.extend,
            changed=lambda _: None,
            clock=lambda: self.now_s,
            runners=[SequenceRunner],
            jitter=lambda: 0.0,
        )

    def ask(self, deadline_s: float = inf, **sampling: int) -> Request:
        """Queue a request."""
        generation = Generation(pb.Sampling(**sampling))  # type: ignore[arg-type]  # as the test says
        generation.begin("r1", PROMPT, Letters())
        request = any_request("p", received_s=self.now_s, deadline_s=deadline_s, kind=GENERATION, details=generation)
        query = Query(request, 0, Priority.DEFAULT, "", self.now_s, deadline_s)
        self.revision.dispatcher.queue.put(query, PROMPT, 2)
        return request

    async def dispatch(self) -> list[FakeGenerationEngine]:
        """Send what is due; to which servers."""
        batches = self.revision.dispatcher.due(self.now_s, max_items=8).batches
        self.tasks += [asyncio.create_task(self.run(batch)) for batch in batches]
        await turns()
        return [self.engines[batch.replica.name] for batch in batches]

    async def run(self, batch: Batch) -> None:
        self.completed += await self.runner.execute(self.revision, self.engines[batch.replica.name], batch)

    def seats(self) -> int:
        return sum(replica.seats for replica in self.revision.dispatcher.replicas.values())


@pytest.fixture
def servers() -> TwoServers:
    return TwoServers()


async def test_a_generation_gets_tokens_and_ends(servers: TwoServers) -> None:
    request = servers.ask(max_tokens=3)
    (engine,) = await servers.dispatch()
    (sequence,) = engine.started
    assert (sequence.token_ids, sequence.sampling.max_tokens) == (PROMPT, 3)
    assert servers.seats() == 15
    sequence.extend([65], (), 0)
    sequence.extend([66, 67], (), 0)
    sequence.end(pb.FINISH_REASON_LENGTH)
    assert servers.completed == [request]
    assert generation_of(request).text == "ABC"
    assert servers.seats() == 16


async def test_what_must_come_at_least_has_room_in_the_context(servers: TwoServers) -> None:
    servers.ask(min_tokens=1_000_000)
    (engine,) = await servers.dispatch()
    (sequence,) = engine.started
    assert sequence.sampling.min_tokens == sequence.sampling.max_tokens == DESCRIPTION.max_input_tokens - 2


async def test_a_batch_is_out_until_each_sequence_has_a_token_or_has_ended(servers: TwoServers) -> None:
    servers.ask(max_tokens=5)
    servers.ask(max_tokens=5)
    (engine,) = await servers.dispatch()
    replica = next(each for each in servers.revision.dispatcher.replicas.values() if each.batches_out)
    first, second = engine.started
    first.extend([65], (), 0)
    assert replica.batches_out == 1
    second.end(pb.FINISH_REASON_STOP)
    await turns()
    assert replica.batches_out == 0
    assert [each.code for each in servers.completed] == [Code.OK]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_generation_resumes_on_another_server_after_its_tokens(servers: TwoServers, begun: bool) -> None:
    request = servers.ask(max_tokens=5, min_tokens=4)
    (engine,) = await servers.dispatch()
    (sequence,) = engine.started
    if begun:
        sequence.extend([65, 66], (), 0)
    sequence.server_lost(ModelServerLost("gone"))
    await turns()
    assert servers.pool.suspects == [engine]
    servers.now_s += 1.0
    (other,) = await servers.dispatch()
    assert other is not engine
    (again,) = other.started
    taken = 2 if begun else 0
    assert again.token_ids == PROMPT + bytes([65, 0, 0, 0, 66, 0, 0, 0])[: 4 * taken]
    assert (again.sampling.max_tokens, again.sampling.min_tokens) == (5 - taken, 4 - taken)
    again.extend([67], (), 0)
    again.end(pb.FINISH_REASON_STOP)
    assert (generation_of(request).text, generation_of(request).attempts) == ("AB"[:taken] + "C", 1)
    assert servers.seats() == 16


async def test_a_server_whose_engine_failed_is_not_suspected_of_being_gone(servers: TwoServers) -> None:
    servers.ask(max_tokens=5)
    (engine,) = await servers.dispatch()
    engine.started[0].fail(Code.INTERNAL, "the engine failed")
    await turns()
    assert not servers.pool.suspects
    assert len(servers.revision.dispatcher.retries) == 1


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
async def test_no_word_of_one_server_condemns_a_prompt_that_another_takes(servers: TwoServers, code: Code) -> None:
    request = servers.ask(max_tokens=5)
    (engine,) = await servers.dispatch()
    engine.started[0].fail(code, "it says")
    await turns()
    assert not servers.completed
    assert bool(servers.pool.suspects) == (not isinstance(server_error(code, ""), EngineFailed))
    servers.now_s += 1.0
    (other,) = await servers.dispatch()
    assert other is not engine
    other.started[0].end(pb.FINISH_REASON_STOP)
    assert (servers.completed, request.code) == ([request], Code.OK)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Code.INVALID_ARGUMENT, "too many stop tokens"),
        (Code.INTERNAL, "made the engine fail again and again: too many stop tokens"),
        (Code.RESOURCE_EXHAUSTED, "made the engine fail again and again: too many stop tokens"),
    ],
)
async def test_a_prompt_that_every_server_refuses_fails_in_its_words(
    servers: TwoServers, code: Code, words: str
) -> None:
    request = servers.ask(max_tokens=5)
    for _ in range(200):
        for engine in await servers.dispatch():
            if engine.started:
                engine.started.pop().fail(code, "too many stop tokens")
        await turns()
        servers.now_s += 1.0
    assert servers.completed == [request]
    assert request.code is (Code.INVALID_ARGUMENT if code is Code.INVALID_ARGUMENT else Code.INTERNAL)
    assert request.failure is not None
    assert words in request.failure.message
    retries = servers.revision.dispatcher.retries
    assert retries.is_quarantined(PROMPT, servers.now_s) == (code is not Code.INVALID_ARGUMENT)


async def die_while_it_runs(servers: TwoServers, tokens: int, *, turns_at_most: int = 200) -> list[str]:
    """Each server is lost once the text has gained so many tokens there; where it was until it was given up."""
    died: list[str] = []
    for _ in range(turns_at_most):
        for engine in await servers.dispatch():
            if engine.started:
                sequence = engine.started.pop()
                for _ in range(tokens):
                    sequence.extend([65], (), 0)
                sequence.server_lost(ModelServerLost("gone"))
                died.append(engine.description.address)
        await turns()
        servers.now_s += 1.0
    return died


@pytest.mark.parametrize("tokens", [0, 1, 31])
async def test_a_prompt_that_servers_die_of_while_probes_succeed_is_given_up(servers: TwoServers, tokens: int) -> None:
    request = servers.ask(max_tokens=500)
    policy = RetryPolicy()
    first, second, *isolated = await die_while_it_runs(servers, tokens)
    assert first != second
    assert len(isolated) == 1 + policy.proofs
    assert set(isolated[1:]) == {"a", "b"}
    assert sum(engine.probes for engine in servers.engines.values()) == policy.proofs * policy.controls
    assert (servers.completed, request.code) == ([request], Code.INTERNAL)
    assert servers.revision.dispatcher.retries.is_quarantined(PROMPT, servers.now_s)
    assert servers.seats() == 16


async def test_a_generation_cleared_on_each_server_before_it_dies_is_tried_on(servers: TwoServers) -> None:
    request = servers.ask(max_tokens=5000)
    assert len(await die_while_it_runs(servers, 32, turns_at_most=60)) == 60
    assert not servers.completed
    (engine,) = await servers.dispatch()
    engine.started[0].end(pb.FINISH_REASON_STOP)
    assert (servers.completed, len(generation_of(request).token_ids)) == ([request], 60 * 32)


async def test_a_prompt_is_not_blamed_by_servers_whose_probes_fail_as_well(servers: TwoServers) -> None:
    request = servers.ask(max_tokens=500)
    for engine in servers.engines.values():
        engine.unwell = True
    assert len(await die_while_it_runs(servers, 0)) == 3
    assert not servers.completed
    for engine in servers.engines.values():
        engine.unwell = False
    await wait_until_it_starts(servers)
    assert (servers.completed, request.code) == ([request], Code.OK)


async def wait_until_it_starts(servers: TwoServers) -> None:
    """Let the generation end wherever it starts next."""
    for _ in range(100):
        for engine in await servers.dispatch():
            if engine.started:
                engine.started.pop().end(pb.FINISH_REASON_STOP)
                return
        servers.now_s += 1.0


async def test_suspects_run_apart_and_the_rest_waits_until_they_are_cleared(servers: TwoServers) -> None:
    asked = [servers.ask(max_tokens=500) for _ in range(2)]
    for _ in range(2):
        for engine in await servers.dispatch():
            for sequence in tuple(engine.started):
                sequence.extend([65], (), 0)
                sequence.server_lost(ModelServerLost("gone"))
            engine.started.clear()
        await turns()
        servers.now_s += 1.0
    (engine,) = await servers.dispatch()
    (alone,) = engine.started
    for _ in range(32):
        alone.extend([65], (), 0)
        assert not await servers.dispatch()
    alone.extend([65], (), 0)
    await turns()
    assert await servers.dispatch() == [engine]
    engine.started[1].end(pb.FINISH_REASON_STOP)
    alone.end(pb.FINISH_REASON_STOP)
    assert [request.code for request in asked] == [Code.OK] * 2


async def test_a_late_generation_ends_with_the_text_so_far(servers: TwoServers) -> None:
    request = servers.ask(deadline_s=servers.now_s + 0.02, max_tokens=500)
    (engine,) = await servers.dispatch()
    engine.started[0].extend([65], (), 0)
    await asyncio.sleep(0.05)
    assert engine.aborted == engine.started
    assert request.code is Code.DEADLINE_EXCEEDED
    assert generation_of(request).text == "A"


async def test_a_stop_string_aborts_the_sequence(servers: TwoServers) -> None:
    request = servers.ask(max_tokens=500)
    generation_of(request).sampling.stop.append("B")
    (engine,) = await servers.dispatch()
    engine.started[0].extend([65], (), 0)
    engine.started[0].extend([66], (), 0)
    assert engine.aborted == engine.started
    assert (servers.completed, generation_of(request).text) == ([request], "A")


async def test_no_sequence_starts_for_a_caller_that_is_gone(servers: TwoServers) -> None:
    request = servers.ask(max_tokens=5)
    batch = servers.revision.dispatcher.due(servers.now_s, max_items=8).batches[0]
    batch.items[0].waiters[0].item = None
    request.fail(Failure(Code.CANCELLED, "gone"))
    await servers.run(batch)
    assert not servers.engines[batch.replica.name].started
    assert not batch.replica.batches_out


async def test_each_generation_is_a_span_of_its_callers_trace_from_its_dispatch(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    servers = TwoServers(SpanTracing(tracer))
    whole, late = servers.ask(max_tokens=3), servers.ask(deadline_s=servers.now_s + 0.02)
    whole.traceparent = f"00-{TRACE}-b7ad6b7169203331-01".encode()
    (engine,) = await servers.dispatch()
    started: list[Any] = [*engine.started]
    sequences: dict[Request, Any] = {each.request: each for each in started}
    servers.now_s += 2.0
    sequences[whole].extend([65], (), 0)
    servers.now_s += 3.0
    sequences[whole].end(pb.FINISH_REASON_LENGTH)
    await asyncio.sleep(0.03)
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


def test_a_lone_server_that_returns_at_other_costs_takes_its_generations() -> None:
    revision = TwoServers().revision
    slower = replace(COSTS, fixed_s=2 * COSTS.fixed_s, kv_tokens=COSTS.kv_tokens - 16)
    assert not revision.servers
    assert revision.takes(replace(GENERATING, instance_id="2", details=slower, step_token_capacity=9))
    assert not revision.takes(replace(GENERATING, max_input_tokens=9))
    assert not revision.takes(replace(GENERATING, tokenizer_fingerprint="another"))
