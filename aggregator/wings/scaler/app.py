"""The scaler: makes its parts from the settings, starts them and stops them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aggregator.wings.scaler.external_metrics.identity import Identity, current_identity
from aggregator.wings.scaler.external_metrics.registration import Registration
from aggregator.wings.scaler.external_metrics.server import ExternalMetricsApi
from aggregator.wings.scaler.keda import GrpcPort, KedaScaler
from aggregator.wings.scaler.measuring.aggregators import ANSWER_TIMEOUT_S, Aggregators
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag
from aggregator.wings.scaler.measuring.rounds import Measuring
from aggregator.wings.scaler.other_scalers import Peers
from aggregator.wings.scaler.published import Published
from aggregator.wings.scaler.settings import ApiSettings, ScalerSettings
from k8s.kube.client import connect
from k8s.kube.endpoints import SCHEME, ServiceAddress, serving
from k8s.kube.objects import KubernetesError, this_namespace
from k8s.pod import open_files, telemetry
from k8s.pod.metrics_buffer import Instrument, Labels, MetricsBuffer

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)
_CHECKED_EVERY_S = 30.0  # another release may have changed the registration
_GRACE_S = 3.0  # for calls in flight


class Scaler:
    """The composition root; `kubernetes` is None outside of a cluster."""

    def __init__(
        self,
        settings: ScalerSettings,
        kubernetes: Kubernetes | None = None,
        kafka: KafkaLag | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._kubernetes = kubernetes or _kubernetes_for(settings)
        self.namespace = this_namespace()
        self._telemetry = telemetry.start(settings.telemetry, "tokenbatch-scaler")
        models = [model.name for model in settings.models]
        self.published = Published(models, settings.api.service, settings.policy.max_age_s, clock)
        show(self._telemetry.buffer, self.published, {model.name: model.model for model in settings.models})
        self._aggregators = Aggregators(settings.aggregators, clock)
        self._kafka = kafka or KafkaLag(settings.kafka)
        self._peers = Peers(models, ANSWER_TIMEOUT_S)
        self.measuring = Measuring(
            settings,
            self._aggregators,
            self._kafka,
            self._peers,
            namespace=self.namespace,
            kubernetes=self._kubernetes,
            published=self.published,
            clock=clock,
        )
        connections = open_files.granted(settings.most_connections, settings.ports)
        self.port = GrpcPort(KedaScaler(self.published, 1.0), settings.keda.bind, connections)
        self.api = ExternalMetricsApi(self.published, self.namespace, connections) if settings.api.bind else None

    async def run(self, stop: asyncio.Event) -> None:
        self._telemetry.health.ready["scaler"] = lambda: None
        await self.port.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(
                        self._aggregators.follow(self._found(self._settings.aggregators.addresses)),
                        name="follow aggregators",
                    ),
                    tasks.create_task(self._peers.follow(self._found(self._settings.peers)), name="follow peers"),
                    tasks.create_task(self.measuring.run(), name="measure"),
                ]
                if self.api is not None and self._kubernetes is not None:
                    serving = self._serve_api(self.api, self._kubernetes, self._settings.api)
                    running.append(tasks.create_task(serving, name="serve the API"))
                else:
                    await self.port.set_ready(ready=True)
                _LOG.info("scaler started", extra={"grpc": self.port.address, "namespace": self.namespace})
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            await self._close()

    async def _close(self) -> None:
        await self.port.stop(_GRACE_S)
        if self.api is not None:
            await self.api.close()
        await self._aggregators.close()
        await self._kafka.close()
        if self._kubernetes is not None:
            await self._kubernetes.close()
        self._telemetry.shutdown()
        _LOG.info("scaler stopped")

    async def _found(self, given: Sequence[str]) -> AsyncIterator[Mapping[str, bool]]:
        """The addresses in the settings, with a Service replaced by its endpoints; and whether their pods are Ready."""
        services = [address for address in given if address.startswith(SCHEME)]
        fixed = {address: True for address in given if not address.startswith(SCHEME)}
        if not services:
            yield fixed
            return
        assert self._kubernetes is not None, "A Service is followed without Kubernetes. This is a bug."
        async for found in serving(self._kubernetes, ServiceAddress.parse(services[0])):
            yield fixed | dict(found)

    async def _serve_api(self, api: ExternalMetricsApi, kubernetes: Kubernetes, settings: ApiSettings) -> None:
        """Serve with the present certificate, and keep the registration right; ready once there is a certificate."""
        used: Identity | None = None
        registration = Registration(kubernetes, self.namespace, settings.service)
        registered = False
        while True:
            try:
                identity = await current_identity(kubernetes, self.namespace, settings.service)
                if identity != used:
                    await api.use(settings.bind, identity.server_context(), identity.client_names)
                    _LOG.info("external metrics are served", extra={"address": api.address})
                    used = identity
                    await self.port.set_ready(ready=True)
                await registration.keep(identity.served.ca_bundle)
                registered = True
            except (KubernetesError, OSError, ssl.SSLError) as error:  # the API is served as before
                _LOG.warning(
                    "certificate or registration could not be checked",
                    extra={"error": str(error)},
                )
            await asyncio.sleep(_CHECKED_EVERY_S if registered else 1.0)


def _kubernetes_for(settings: ScalerSettings) -> Kubernetes | None:
    needed = (
        any(address.startswith(SCHEME) for address in (*settings.aggregators.addresses, *settings.peers))
        or any(model.deployment for model in settings.models)
        or bool(settings.api.bind)
    )
    return connect() if needed else None


_MODEL = ("model",)
_REPLICAS = Instrument("tokenbatch.required_replicas", "{replica}", "model servers the present load needs", _MODEL)
_AGE = Instrument("tokenbatch.scaler.input_age", "s", "age of the oldest input of a figure", _MODEL)
_KEYS = ("metric", "scaler", "model")
_FIGURE = Instrument("tokenbatch.scaler.figure", "1", "figure for the autoscaler; absent while unknown", _KEYS)


def show(buffer: MetricsBuffer, published: Published, models: Mapping[str, str]) -> None:
    """Show the published figures by the aggregators' name of each model, and for an adapter as autoscalers get them."""
    buffer.gauges((_REPLICAS, _AGE), lambda: _values(published.ages_s(), models))
    buffer.gauges(
        (_FIGURE,),
        lambda: {
            _FIGURE: {
                (metric, *(each.labels.get(key, "") for key in _KEYS[1:])): each.value
                for metric, each in published.known()
            }
        },
    )


def _values(
    figures: Mapping[str, tuple[float | None, float]], models: Mapping[str, str]
) -> Mapping[Instrument, Mapping[Labels, float]]:
    """The servers of a model and those of its canary count together."""
    replicas: dict[Labels, float] = {}
    ages: dict[Labels, float] = {}
    for name, (required, age_s) in figures.items():
        model = (models[name],)
        ages[model] = max(age_s, ages.get(model, 0.0))
        if required is not None:
            replicas[model] = required + replicas.get(model, 0.0)
    return {_REPLICAS: replicas, _AGE: ages}
