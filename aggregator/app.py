"""One aggregator: its parts made from settings, started in order, drained in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.known_rows import KnownRows
from aggregator.admission.ledger import INTAKE_SHARE, Ledger
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.models import Canary, Model, Models
from aggregator.admission.quotas import Quotas
from aggregator.errors import unless_cancelled
from aggregator.model_server import ServerDescription
from aggregator.observability.costs import FREE, Costs
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.pipeline import Pipeline
from aggregator.registry import DEMAND, DOORS, KINDS, PROGRESS, REPLICAS, ROUTES, RUNNERS, SERVICES, SUBSETS
from aggregator.replicas.pool import ModelServers
from aggregator.replicas.targets import OpenTargets, Target, fixed
from aggregator.reports.gauges import GAUGES, OnLoop, gauge_values
from aggregator.reports.state import AggregatorState
from aggregator.request.request import GRPC, HTTP, Backlog, Source
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica_choice import all_in_use
from aggregator.scheduler.work_item import Task
from aggregator.settings.aggregator import AggregatorSettings, GrpcSettings, TenantSettings
from aggregator.sources.brokers import Broker, BrokerParts
from aggregator.sources.calls.callers import Authentication
from aggregator.sources.calls.calls import Served
from aggregator.sources.calls.load import Limits, Load
from aggregator.sources.extension import Extension, ExtensionParts
from aggregator.sources.grpc.listener import GrpcSource
from aggregator.sources.http.listener import HttpSource
from aggregator.sources.http.static import Static
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.envelope import EnvelopeFormat
from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.source import KafkaSource
from aggregator.tokenizers.cache import TokenizerCache
from aggregator.tokenizers.counting import INLINE_CHARACTERS, Counting
from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.authentication.credentials import open_authentication
from aggregator.wings.batches.extension import BATCHES
from aggregator.wings.cache.cache import open_caches
from aggregator.wings.cloud_events.envelope import CLOUD_EVENTS
from aggregator.wings.costs.tenants import TenantCosts
from aggregator.wings.discovery.discovery import Discovery
from aggregator.wings.fast_tokenizer.fast_path import fast_path
from aggregator.wings.openapi.documents import OPENAPI
from aggregator.wings.page.live import live_pages
from aggregator.wings.quotas.rates import TenantRates
from aggregator.wings.redis.broker import REDIS_BROKER
from aggregator.wings.sla.service_levels import service_levels
from aggregator.wings.tracing.spans import open_tracing
from aggregator.wings.undecodable.batches import read_by_hand
from k8s.pod import open_files, telemetry
from k8s.pod.metrics_buffer import MetricsBuffer
from k8s.pod.monitoring import Heartbeat, Pages

_LOG = logging.getLogger(__name__)
BROKERS: Sequence[Broker] = [
    REDIS_BROKER,
]
"""Brokers beside Kafka."""
AUTHENTICATION: Sequence[Callable[[GrpcSettings], Authentication | None]] = [
    open_authentication,
]
"""The ways to authenticate a caller; the first that the settings enable counts."""
ENVELOPES: Sequence[EnvelopeFormat] = [
    CLOUD_EVENTS,
]
"""The envelopes that a record's value may have."""
EXTENSIONS: Sequence[Extension] = [
    BATCHES,
]
"""Routes over HTTP that bring a source with them: a batch, for one, is uploaded now and computed later."""
PAGES: Sequence[Callable[[AggregatorState], Pages]] = [
    live_pages,
]
"""Further pages of the monitoring port."""
DISCOVERY: Sequence[OpenTargets] = [
    Discovery,
]
"""What follows addresses whose endpoints change."""
QUOTAS: Sequence[Callable[[TenantSettings, OpenTargets], Quotas]] = [
    TenantRates,
]
"""What holds tenants to a rate."""
STATIC_PATHS: Sequence[Mapping[str, Callable[[], Static]]] = [
    OPENAPI,
]
"""Documents that the HTTP port answers a GET with, the same for every caller."""
TRACING: Sequence[Callable[[telemetry.Telemetry], Tracing | None]] = [
    open_tracing,
]
"""Spans of the hot path."""
COSTS: Sequence[Callable[[MetricsBuffer, Collection[str]], Costs]] = [
    TenantCosts,
]
"""Counts what each tenant costs; the second argument names tenants that always have series of their own."""
_CLOSE_TIMEOUT_S = 5.0  # to commit and disconnect; twice of it is kept of the grace period
_CLAIMED_BATCHES = 8
"""For each server: one runs, one is staged, some are on their way, and the rest is there to choose from."""
_STALLED_S = 10.0
"""A batch that hangs is noticed, halved and answered within it, unless the engine hangs at any size."""
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
        costs = next((opened(self._telemetry.buffer, settings.tenants.rates) for opened in COSTS), FREE)
        self._metrics = Metrics(self._telemetry.buffer, settings.sla.latency_s, costs)
        tracing = next(filter(None, (opened(self._telemetry) for opened in TRACING)), Tracing())
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")
        self._models = make_models(
            settings,
            self._tokenizing,
            known=open_caches(settings, self._telemetry.buffer),
        )
        cache = TokenizerCache(
            settings.tokenizer.cache,
            open_fast=fast_path(self._metrics.tokenizer_checked) if settings.tokenizer.fast else None,
        )
        targets = [Target(address, model.name) for model in settings.models for address in model.servers]
        pool = self._pool = ModelServers(
            open_targets()(targets), cache, KINDS, tracing=tracing, costs=self._metrics.costs
        )
        self._quotas = quotas_of(settings)
        self._pipeline = Pipeline(
            self._models,
            pool,
            self._metrics,
            tracing,
            limits=AdmissionLimits(self._quotas),
            max_unavailable_s=settings.batching.max_unavailable_s,
            runners=RUNNERS,
            demand=DEMAND,
        )
        self.sources: list[Source] = self._pipeline.sources
        self._ledger = make_ledger(settings)
        if settings.kafka.enabled:
            self.sources.append(self._open_kafka(settings, tracing))
        parts = BrokerParts(
            KINDS,
            settings.models[0].name,
            room=self._room,
            intake=self._ledger.intake,
            dimensions=self._models.dimensions,
            known=self._models.__contains__,
            trusts_tenant=not settings.grpc.authenticated,
            metrics=self._metrics,
        )
        self.sources += filter(None, (broker.open(settings, parts) for broker in BROKERS))
        served = Served(
            default_model=settings.models[0].name,
            models=self._models,
            give_up=self._pipeline.give_up,
            load=Load(_limits(settings), self._metrics, ledger=self._ledger),
            authentication=authentication_of(settings.grpc),
            tracing=tracing,
        )
        if settings.grpc.bind:
            self.sources.append(GrpcSource(settings.grpc, served, SERVICES))
        http: HttpSource | None = None
        if settings.http.bind:
            self.sources.append(
                http := HttpSource(
                    settings.http, settings.grpc.tls, served, ROUTES, doors=DOORS, static_paths=STATIC_PATHS
                )
            )
        extensions = ExtensionParts(http, served, self._ledger.intake, self._pipeline.forget)
        self.sources += filter(None, (extension.open(settings, extensions) for extension in EXTENSIONS))
        self._work: list[asyncio.Task[None]] = []
        self._started = False

    def _open_kafka(self, settings: AggregatorSettings, tracing: Tracing) -> KafkaSource:
        def on_fenced(in_flight_records: Sequence[InFlightRecord]) -> None:
            """Partitions were revoked: their new owner reads the records without a reply again."""
            self._pipeline.forget(source.revoked(in_flight_records))

        for topic in settings.kafka.topics:  # Prometheus sees no increase in a series that appears with its first loss
            self._metrics.records_lost.add(0, topic.name)
            self._metrics.records_ahead.add(0, topic.name)
        for name in settings.kafka.reply_topics:
            self._metrics.batches_untimely.add(0, name)
        source = KafkaSource(
            settings.kafka,
            settings.models[0].name,
            KafkaConsumer(
                settings.kafka,
                on_fenced,
                self._metrics,
                intake=self._ledger.intake,
                read_by_hand=read_by_hand,
            ),
            KafkaProducer(
                settings.kafka, tracing=tracing, on_untimely=lambda topic: self._metrics.batches_untimely.add(1, topic)
            ),
            kinds=KINDS,
            trusts_tenant=not settings.grpc.authenticated,
            envelopes=ENVELOPES,
            progress=PROGRESS,
            known=self._models.__contains__,
            dimensions=self._models.dimensions,
            metrics=self._metrics,
            tracing=tracing,
        )
        return source

    def _backlogs(self) -> list[Backlog]:
        return [each for source in self.sources for each in source.backlogs()]

    def _room(self, name: str, task: Task) -> int:
        """Tokens that a source may claim for a model: a few batches for each server, less the tokens held."""
        served = self._models.find(name, task)
        replicas = [
            each for revision in served.revisions.values() for each in revision.dispatcher.replicas.in_use.values()
        ]
        batch_tokens = sum(each.kv_tokens or max(each.token_budget, each.largest) for each in replicas)
        return _CLAIMED_BATCHES * batch_tokens - served.model.admission.total - served.pending.tokens

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
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._telemetry.shutdown()
        _LOG.info("aggregator stopped")

    async def _start(self, tasks: asyncio.TaskGroup, heartbeat: Heartbeat) -> None:
        """Start work in `tasks`, once every source has what it needs. Raises StartError."""
        settings = self._settings
        for source in self.sources:
            await source.prepare(settings.lifecycle.connect_timeout_s)
        read_gauges = OnLoop(lambda: gauge_values(self._models, self._backlogs()))
        self._telemetry.buffer.gauges(GAUGES, read_gauges)
        state = AggregatorState(
            self._models,
            self._metrics,
            self._pipeline.demand,
            self._pool.troubles,
            backlogs=None if all(source.refusable for source in self.sources) else self._backlogs,
            broker_troubles=lambda: [why for source in self.sources if (why := source.trouble())],
            slo_s=settings.sla.latency_s,
            file_limit_warning=file_limit_warning(settings),
        )
        for open_pages in PAGES:
            self._telemetry.show(open_pages(state))
        ready = self._telemetry.health.ready
        ready["models"] = self._models_ready
        ready.update((source.name, source.trouble) for source in self.sources if not source.refusable)
        ready["loop"] = heartbeat.within(_UNREADY_S)
        self._work.append(tasks.create_task(unless_cancelled(self._pipeline.run()), name="pipeline"))
        self._work.append(tasks.create_task(unless_cancelled(self._quotas.run()), name="quotas"))
        demand = await self._pipeline.demand.start(settings.demand.bind) if settings.demand.bind else None
        for source in self.sources:
            self._work.append(tasks.create_task(unless_cancelled(source.run()), name=source.name))
        self._started = True
        _LOG.info(
            "aggregator started",
            extra={
                GRPC: None,
                HTTP: None,
                **{source.name: source.address for source in self.sources if source.address},
                "demand": demand,
                "metrics": self._telemetry.metrics_address,
            },
        )

    async def _drain(self) -> None:
        """Stop intake, finish the requests in flight, commit, leave; other aggregators replay unfinished records."""
        self._draining = True
        grace_s = self._settings.lifecycle.grace_s
        _LOG.info("drain started", extra={"grace_s": grace_s})
        try:
            async with asyncio.timeout(max(0.0, grace_s - 2 * _CLOSE_TIMEOUT_S)), asyncio.TaskGroup() as tasks:
                for source in self.sources:
                    tasks.create_task(source.stop(grace_s), name=f"stop {source.name}")
                tasks.create_task(self._finish(), name="drain")
        except TimeoutError:
            _LOG.warning("drain timed out: unfinished records will be replayed, open calls are cancelled")
        for source in self.sources:
            await source.close(_CLOSE_TIMEOUT_S)
        await self._pipeline.demand.stop()

    async def _finish(self) -> None:
        """Complete every request, and write every dead letter."""
        await self._pipeline.drain()
        for source in self.sources:
            await source.delivered()

    def _models_ready(self) -> str | None:
        """Ready when a model can be served, or scales from zero: one model without servers must not stop the others."""
        if self._draining:
            return "draining"
        if not self._started:
            return "starting"
        now_s = time.monotonic()
        serving = [served for served in self._models.tasks if served.available]
        if any(model.scales_to_zero for model in self._models):
            return None
        if any(served.stalled_s(now_s) < _STALLED_S for served in serving):
            return None
        if serving:
            return f"every batch has timed out for {_STALLED_S:g} s"
        return "no model server is available"


def authentication_of(settings: GrpcSettings) -> Authentication | None:
    """The authentication that the settings ask for; None: anybody may call. Raises StartError for an unusable file."""
    return next(filter(None, (opened(settings) for opened in AUTHENTICATION)), None)


def open_targets() -> OpenTargets:
    return next(iter(DISCOVERY), fixed)


def quotas_of(settings: AggregatorSettings) -> Quotas:
    """The rates of tenants that the settings ask for. Raises StartError."""
    return next((opened(settings.tenants, open_targets()) for opened in QUOTAS), Quotas())


def _limits(settings: AggregatorSettings) -> Limits:
    """The limits of all listeners, of which each takes as many connections as the open files allow."""
    limits = Limits()
    return replace(limits, max_connections=open_files.granted(limits.max_connections, _ports(settings)))


def file_limit_warning(settings: AggregatorSettings) -> str:
    """The bounds that the limit of open files lowers; empty where it lowers none."""
    return open_files.shortage(Limits().max_connections, _ports(settings))


def _ports(settings: AggregatorSettings) -> int:
    return sum(bool(bind) for bind in (settings.grpc.bind, settings.http.bind))


def make_models(
    settings: AggregatorSettings,
    worker: Executor,
    *,
    known: Callable[[ServerDescription], KnownRows] | None = None,
) -> Models:
    """The configured models with the policy of their queues; the worker tokenizes short texts.

    `known` makes what a model revision knows of the rows that it gave.
    """
    batching = settings.batching
    admission = AdmissionPolicy(batching.max_held_tokens)
    policy = DispatchPolicy(queue=QueuePolicy(coalesce=batching.coalesce), replicas=next(iter(SUBSETS), all_in_use))
    models = [
        Model(
            model.name,
            model.aliases,
            Admission(admission),
            scales_to_zero=model.scales_to_zero,
            both=model.task == "both",
            canary=Canary(model.canary.revision, model.canary.share) if model.canary is not None else None,
        )
        for model in settings.models
    ]

    def counting(tokenizer: Tokenizer) -> Counting:
        return Counting(tokenizer, worker, inline_characters=INLINE_CHARACTERS)

    return Models(
        models,
        policy,
        batching.token_budget,
        counting,
        known=known,
        service_level=service_levels(settings.sla),
        replicas=REPLICAS,
    )


def make_ledger(settings: AggregatorSettings) -> Ledger:
    """The ledger of a process; a part that no source of this process uses goes to the other."""
    pauses = any(broker.enabled for broker in settings.brokers.values())
    answers = bool(settings.grpc.bind or settings.http.bind)
    return Ledger(settings.limits.memory_bytes, INTAKE_SHARE if pauses and answers else float(pauses))
