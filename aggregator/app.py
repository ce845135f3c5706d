"""One aggregator: its parts made from settings, started in order, drained in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from math import inf

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.models import Canary, Model, Models
from aggregator.admission.quotas import QuotaPolicy, Quotas
from aggregator.admission.tokenizers.cache import TokenizerCache
from aggregator.admission.tokenizers.counting import INLINE_CHARACTERS, Counting
from aggregator.admission.tokenizers.tokenizer import Tokenizer
from aggregator.errors import StartError, TokenbatchError
from aggregator.observability import telemetry
from aggregator.observability.demand import DemandMeter, DemandReport
from aggregator.observability.demand_server import DemandServer
from aggregator.observability.gauges import gauge_values
from aggregator.observability.health import Heartbeat
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline import Pipeline
from aggregator.replicas.discovery import Discovery, ReadyAggregators, Target, changes
from aggregator.replicas.pool import ModelServers, describe
from aggregator.scheduler.budget.controller import SlaGoal
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.settings.aggregator import AggregatorSettings, SlaSettings
from aggregator.settings.load import as_text
from aggregator.sources.grpc.source import GrpcSource
from aggregator.sources.kafka.connection import check as check_kafka
from aggregator.sources.kafka.connection import prepare_topics
from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.consumer.consumer import KafkaConsumer
from aggregator.sources.kafka.producer.producer import KafkaProducer
from aggregator.sources.kafka.source import KafkaSource

_LOG = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0
_UNREADY_S = 10.0
"""The process is not ready when the event loop has not run for this time,"""
_WEDGED_S = 60.0
"""and not alive after this time."""


class Aggregator:
    """The composition root: makes every part, and starts and stops them in order."""

    def __init__(self, settings: AggregatorSettings) -> None:
        self._settings = settings
        self._draining = False
        self._telemetry = telemetry.start(settings.telemetry, "tokenbatch-aggregator")
        self._metrics = Metrics(self._telemetry.buffer, settings.sla.latency_s)
        tracing = Tracing(self._telemetry.tracer, enabled=self._telemetry.traces)
        self._workers = tuple(ThreadPoolExecutor(1, name) for name in ("tokenizer", "long-tokenizer"))
        self._models = make_models(settings, *self._workers)
        cache = TokenizerCache(
            settings.tokenizer.cache, fast=settings.tokenizer.fast, on_check=self._metrics.tokenizer_checked
        )
        targets = [Target(address, model.name) for model in settings.models for address in model.servers]
        pool = ModelServers(Discovery(targets), cache, tracing=tracing)
        meter = DemandMeter(self._models)
        self._ready_aggregators = ReadyAggregators(settings.tenants.aggregators if settings.tenants.limited else "1")
        self._pipeline = Pipeline(
            self._models,
            pool,
            self._metrics,
            tracing,
            limits=make_limits(settings, self._ready_aggregators),
            meter=meter,
            max_unavailable_s=settings.batching.max_unavailable_s,
        )
        self._consumer: KafkaConsumer | None = None
        self._producer: KafkaProducer | None = None
        self._grpc: GrpcSource | None = None
        if settings.kafka.enabled:
            self._open_kafka(settings, tracing)
        if settings.grpc.bind:
            self._grpc = GrpcSource(settings, self._pipeline.give_up, self._models, self._metrics, tracing)
            self._pipeline.sources.append(self._grpc)
        defaults = {topic.name: topic.model or settings.models[0].name for topic in settings.kafka.topics}
        self._report = DemandReport(self._models, meter, defaults, self._consumer)
        self._demand = DemandServer(settings.demand.bind, self._report) if settings.demand.bind else None
        self._work: list[asyncio.Task[None]] = []
        self._started = False

    def _open_kafka(self, settings: AggregatorSettings, tracing: Tracing) -> None:
        def on_fenced(in_flight_records: Sequence[InFlightRecord]) -> None:
            """Partitions were revoked: their new owner reads again what has no reply."""
            self._pipeline.forget(source.revoked(in_flight_records))

        self._consumer = KafkaConsumer(settings.kafka, on_fenced, self._metrics)
        self._producer = KafkaProducer(settings.kafka)
        source = KafkaSource(
            settings.kafka,
            settings.models[0].name,
            self._consumer,
            self._producer,
            trusts_tenant=not settings.grpc.authentication.required,
            metrics=self._metrics,
            tracing=tracing,
        )
        self._pipeline.sources.append(source)
        for topic in settings.kafka.topics:
            self._metrics.records_lost(topic.name, 0)

    async def run(self, stop: asyncio.Event) -> None:
        """Start, work until `stop` is set, drain within the grace period; an unfinished start is cancelled."""
        heartbeat = Heartbeat()
        self._telemetry.health.live.update(loop=heartbeat.within(_WEDGED_S))
        async with asyncio.TaskGroup() as tasks:
            start = tasks.create_task(self._start(tasks, heartbeat), name="start")
            await stop.wait()
            if start.done():
                await self._drain()
            for task in (start, *self._work):
                task.cancel()
        heartbeat.stop()
        for worker in self._workers:
            worker.shutdown(wait=False, cancel_futures=True)
        self._telemetry.shutdown()
        _LOG.info("aggregator stopped")

    async def _start(self, tasks: asyncio.TaskGroup, heartbeat: Heartbeat) -> None:
        """Start work in `tasks`, once Kafka and every port are available. Raises StartError."""
        settings = self._settings
        if settings.kafka.enabled:
            await prepare_topics(settings.kafka, settings.lifecycle.connect_timeout_s)
        self._metrics.watch(lambda: gauge_values(self._models, self._consumer, self._report.tokens_per_record))
        self._telemetry.health.ready.update(
            models=self._models_ready, kafka=self._kafka_ready, loop=heartbeat.within(_UNREADY_S)
        )
        self._work.append(tasks.create_task(self._pipeline.run(), name="pipeline"))
        self._work.append(tasks.create_task(self._ready_aggregators.run(), name="ready aggregators"))
        if self._demand is not None:
            await self._demand.start()
        if self._consumer is not None and self._producer is not None:
            await self._producer.start()
            self._work.append(tasks.create_task(self._consumer.run(), name="consumer"))
        if self._grpc is not None:
            await self._grpc.server.start()
            await self._grpc.server.set_serving(serving=True)
        self._started = True
        _LOG.info(
            "aggregator started",
            extra={
                "grpc": self._grpc.server.address if self._grpc else None,
                "demand": self._demand.address if self._demand else None,
                "metrics": self._telemetry.metrics_address,
            },
        )

    async def _drain(self) -> None:
        """Stop intake, finish what is in flight, commit, leave; other aggregators replay unfinished records."""
        self._draining = True
        grace_s = self._settings.lifecycle.grace_s
        _LOG.info("drain started", extra={"grace_s": grace_s})
        if self._consumer is not None:
            self._consumer.stop_fetching()
        try:
            async with asyncio.timeout(max(0.0, grace_s - 2 * _CLOSE_TIMEOUT_S)), asyncio.TaskGroup() as tasks:
                if self._grpc is not None:
                    tasks.create_task(self._grpc.stop(grace_s), name="stop grpc")
                tasks.create_task(self._pipeline.drain(), name="drain")
        except TimeoutError:
            _LOG.warning("drain timed out: unfinished records will be replayed, open calls are cancelled")
        if self._producer is not None and self._consumer is not None:
            await self._producer.close(_CLOSE_TIMEOUT_S)
            await self._consumer.close(_CLOSE_TIMEOUT_S)
        if self._demand is not None:
            await self._demand.stop()

    def _models_ready(self) -> str | None:
        """Ready when a model can be served, or scales from zero: one model without servers must not stop the others."""
        if self._draining:
            return "draining"
        if not self._started:
            return "starting"
        if any(model.available or model.scales_to_zero for model in self._models):
            return None
        return "no model server is available"

    def _kafka_ready(self) -> str | None:
        if self._consumer is None or self._consumer.healthy:
            return None
        return "Kafka cannot be reached"


def make_models(settings: AggregatorSettings, worker: Executor, long_worker: Executor) -> Models:
    """The configured models with the policy of their queues; the workers tokenize."""
    batching = settings.batching
    admission = AdmissionPolicy(batching.max_held_tokens)
    policy = DispatchPolicy(queue=QueuePolicy(coalesce=batching.coalesce))
    models = [
        Model(
            model.name,
            model.aliases,
            Admission(admission),
            scales_to_zero=model.scales_to_zero,
            canary=Canary(model.canary.revision, model.canary.share) if model.canary is not None else None,
        )
        for model in settings.models
    ]
    goal = make_goal(settings.sla)

    def counting(tokenizer: Tokenizer) -> Counting:
        return Counting(tokenizer, worker, long_worker, inline_characters=INLINE_CHARACTERS)

    return Models(models, policy, batching.token_budget, counting, goal)


def make_goal(sla: SlaSettings) -> SlaGoal | None:
    """What token budgets are controlled by; None: they are the measured saturation points."""
    return None if sla.latency_s is None else SlaGoal(answer_s=sla.latency_s)


async def check(settings: AggregatorSettings) -> int:
    """Print the settings (secrets masked) and what every connection says; 0 when all is well, else 1."""
    print(as_text(settings))
    problems: list[str] = []
    timeout_s = settings.lifecycle.connect_timeout_s
    if settings.kafka.enabled:
        try:
            for warning in await check_kafka(settings.kafka, timeout_s):
                print(f"warning: {warning}")
            print(f"kafka {settings.kafka.bootstrap_servers}: ok")
        except StartError as error:
            problems.append(str(error))
    for model in settings.models:
        for address in model.servers:
            if changes(address):
                continue  # its endpoints change; readiness tells whether there are any
            try:
                found = await describe(address, timeout_s)
            except TokenbatchError as error:
                problems.append(f"model server {address}: {error}")
                continue
            if found.model != model.name:
                problems.append(f"model server {address} serves {found.model}, not {model.name}")
            print(f"model server {address}: {found.model} {found.model_revision}, {found.dimensions} dimensions")
    for problem in problems:
        print(f"problem: {problem}")
    print("ok" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def make_limits(settings: AggregatorSettings, ready_aggregators: Callable[[], int] = lambda: 1) -> AdmissionLimits:
    """The admission limits; a tenant's rate is divided among `ready_aggregators`."""
    tenants = settings.tenants
    rate = inf if tenants.tokens_per_s is None else tenants.tokens_per_s
    quotas = Quotas(QuotaPolicy(rate, tenants.rates), ready_aggregators)
    return AdmissionLimits(quotas)
