"""One scaler: its parts made from settings, started in order, stopped in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.errors import StartError
from aggregator.observability import telemetry
from k8s.api import Kubernetes, KubernetesError, connect, this_namespace
from k8s.endpoints import SCHEME, ServiceAddress, serving
from k8s.scaler.aggregators import Aggregators
from k8s.scaler.catalog import Catalog
from k8s.scaler.external_metrics import ExternalMetricsApi
from k8s.scaler.figures import Published
from k8s.scaler.front_proxy import FrontProxy, front_proxy, server_context
from k8s.scaler.kafka_lag import KafkaLag
from k8s.scaler.keda import GrpcPort, KedaScaler
from k8s.scaler.measuring import Lag, Measuring
from k8s.scaler.metrics import ScalerMetrics
from k8s.scaler.peers import Peers
from k8s.scaler.registration import Registration
from k8s.scaler.settings import ApiSettings, ScalerSettings
from k8s.scaler.shared_certificate import SharedCertificate

_LOG = logging.getLogger(__name__)
_CERTIFICATES_INTERVAL_S = 30.0
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What the API is served with: a certificate and its key (PEM), who signed it, and who may ask."""

    certificate: bytes
    key: bytes
    ca_bundle: bytes
    proxy: FrontProxy


class Scaler:
    """The composition root; `kubernetes` is None outside of a cluster."""

    def __init__(
        self,
        settings: ScalerSettings,
        kubernetes: Kubernetes | None = None,
        kafka: Lag | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._kubernetes = kubernetes or _kubernetes_for(settings)
        self.namespace = settings.namespace or this_namespace()
        self._telemetry = telemetry.start(settings.telemetry, "tokenbatch-scaler")
        published = Published(settings.policy.max_age_s, clock)
        models = [model.name for model in settings.models]
        metrics = ScalerMetrics(self._telemetry.gatherer, lambda: published.ages_s(models))
        labels = {model.label or model.name: model.name for model in settings.models}
        self.catalog = Catalog(published, labels, settings.api.service)
        metrics.show(self.catalog)
        self._aggregators = Aggregators(settings.aggregators, clock, lambda: metrics.input_failed("aggregator"))
        self._kafka = kafka or KafkaLag(settings.kafka)
        self._peers = Peers(labels, settings.aggregators.timeout_s)
        self.measuring = Measuring(
            settings,
            self._aggregators,
            self._kafka,
            self._peers,
            namespace=self.namespace,
            kubernetes=self._kubernetes,
            published=published,
            metrics=metrics,
            clock=clock,
        )
        self.port = GrpcPort(KedaScaler(self.catalog, metrics, 1.0), settings.keda.bind)
        self.api = ExternalMetricsApi(self.catalog, self.namespace, metrics) if settings.api.enabled else None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""
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
                if self.api is not None:
                    serving = self._serve_api(self.api, self._settings.api)
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
        """Those of the settings, and the endpoints of a Service among them; and whether their pods are Ready."""
        services = [address for address in given if address.startswith(SCHEME)]
        fixed = {address: True for address in given if not address.startswith(SCHEME)}
        if not services:
            yield fixed
            return
        assert self._kubernetes is not None, "A Service is followed without Kubernetes. This is a bug."
        async for found in serving(self._kubernetes, ServiceAddress.parse(services[0])):
            yield fixed | dict(found)

    async def _serve_api(self, api: ExternalMetricsApi, settings: ApiSettings) -> None:
        """Serve with the certificates of the moment, ready once there are any; and let the API server know."""
        used: Identity | None = None
        registration = self._registration(settings)
        registered = False
        while True:
            try:
                identity = await self._identity(settings)
                if identity != used:
                    tls = server_context(identity.certificate, identity.key, identity.proxy.client_ca)
                    await api.use(settings.bind, tls, identity.proxy.names)
                    _LOG.info("external metrics are served", extra={"address": api.address})
                    used = identity
                    await self.port.set_ready(ready=True)
                if registration is not None:
                    await registration.keep(identity.ca_bundle)
                registered = True
            except (KubernetesError, OSError, ssl.SSLError) as error:  # what is served stays served
                _LOG.warning("certificates could not be looked after", extra={"error": str(error)})
            await asyncio.sleep(_CERTIFICATES_INTERVAL_S if registered else 1.0)

    def _registration(self, settings: ApiSettings) -> Registration | None:
        """None outside of a cluster, where there is nothing to register with."""
        if self._kubernetes is None:
            return None
        return Registration(self._kubernetes, namespace=self.namespace, service=settings.service, owner=settings.owner)

    async def _identity(self, settings: ApiSettings) -> Identity:
        if settings.client_ca_file is not None:
            proxy = FrontProxy(settings.client_ca_file.read_text(), settings.client_names)
        else:
            proxy = await front_proxy(self._cluster())
        if settings.cert_file is not None and settings.key_file is not None:
            authority = settings.ca_file
            bundle = authority.read_bytes() if authority is not None and authority.exists() else b""
            return Identity(settings.cert_file.read_bytes(), settings.key_file.read_bytes(), bundle, proxy)
        shared = SharedCertificate(
            self._cluster(),
            namespace=self.namespace,
            secret=settings.secret,
            names=[
                f"{settings.service}.{self.namespace}.svc",
                f"{settings.service}.{self.namespace}.svc.cluster.local",
            ],
            days=settings.certificate_days,
        )
        found = await shared.current()
        return Identity(found.certificate, found.key, found.ca_bundle, proxy)

    def _cluster(self) -> Kubernetes:
        if self._kubernetes is None:
            raise StartError("outside of Kubernetes api.cert_file, api.key_file and api.client_ca_file must be set")
        return self._kubernetes


def _kubernetes_for(settings: ScalerSettings) -> Kubernetes | None:
    """The cluster, where anything in the settings needs one."""
    api = settings.api
    needed = (
        any(address.startswith(SCHEME) for address in (*settings.aggregators.addresses, *settings.peers))
        or any(model.deployment for model in settings.models)
        or (api.enabled and (api.client_ca_file is None or api.cert_file is None))
    )
    return connect() if needed else None
