"""Measure all inputs in rounds, and publish a figure for each model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.scaler.measuring.aggregators import Aggregators
from aggregator.wings.scaler.measuring.demand import DemandPolicy, StaleInputError
from aggregator.wings.scaler.measuring.figures import ModelFigures, Replicas, TopicShares
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag, LogEnds
from aggregator.wings.scaler.other_scalers import Peers
from aggregator.wings.scaler.published import Published
from aggregator.wings.scaler.settings import ModelSettings, ScalerSettings
from k8s.kube.objects import KubernetesError

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)


class Measuring:
    """A round asks aggregators, Kafka and Deployments at once, then computes; what fails keeps its last value."""

    def __init__(
        self,
        settings: ScalerSettings,
        aggregators: Aggregators,
        kafka: KafkaLag,
        peers: Peers,
        *,
        namespace: str,
        kubernetes: Kubernetes | None,
        published: Published,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._aggregators = aggregators
        self._kafka = kafka
        self._peers = peers
        self._kubernetes = kubernetes
        self._published = published
        self._clock = clock
        self._ends: LogEnds | None = None
        self._replicas: dict[str, Replicas] = {}
        shares = TopicShares(topics_by_model(settings.kafka, settings.models))
        policy = settings.policy
        demand = DemandPolicy(policy.drain_s, policy.utilisation, policy.peak_hold_s, policy.max_age_s)
        self._figures = {
            model.name: ModelFigures(
                model.model,
                shares,
                demand,
                arrival_window_s=policy.arrival_window_s,
                share=model.share,
            )
            for model in settings.models
        }

    async def run(self) -> None:
        interval_s = self._settings.aggregators.interval_s
        while True:
            started_s = self._clock()
            await self.round()
            await asyncio.sleep(max(0.0, started_s + interval_s - self._clock()))

    async def round(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._aggregators.ask(), name="ask aggregators")
            tasks.create_task(self._read_kafka(), name="read log ends")
            peers = tasks.create_task(self._peers.required(), name="ask peers")
            for model in self._settings.models:
                if model.deployment and self._kubernetes is not None:
                    tasks.create_task(self._read_replicas(self._kubernetes, model), name=f"read {model.deployment}")
        self._published.of_peers = peers.result()
        self._publish()
        self._published.trouble = self._trouble()

    def _publish(self) -> None:
        published, answers = self._published, self._aggregators.answers()
        if answers.answers:
            published.busy = (sum(answer.busy_share for answer in answers.answers), answers.measured_s)
        if self._ends is None:
            return
        for model in self._settings.models:
            replicas = self._replicas.get(model.name)
            if model.deployment and self._kubernetes is not None and replicas is None:
                continue
            try:
                figure = self._figures[model.name].update(answers, self._ends, replicas, self._clock())
            except StaleInputError:
                continue  # the published figure becomes too old, and is then refused
            published.figures[model.name] = figure

    def _trouble(self) -> str:
        max_age_s = self._settings.policy.max_age_s
        now_s = self._clock()
        missing = [f"aggregator {address} does not answer" for address in self._aggregators.silent()]
        if self._aggregators.answers().measured_s == float("-inf"):
            missing.append("no aggregator has answered")
        if self._ends is None or now_s - self._ends.measured_s > max_age_s:
            missing.append("Kafka does not answer")
        for model in self._settings.models:
            replicas = self._replicas.get(model.name)
            if model.deployment and (replicas is None or now_s - replicas.measured_s > max_age_s):
                missing.append(f"the Deployment {model.deployment} cannot be read")
        return "; ".join(missing) or "its inputs are too old"

    async def _read_kafka(self) -> None:
        try:
            self._ends = await self._kafka.read(self._clock())
        except (KafkaError, TimeoutError, OSError) as error:
            _LOG.warning("Kafka did not answer", extra={"error": repr(error)})

    async def _read_replicas(self, kubernetes: Kubernetes, model: ModelSettings) -> None:
        measured_s = self._clock()
        try:
            found = await kubernetes.get(f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{model.deployment}")
        except KubernetesError as error:
            _LOG.warning("a Deployment could not be read", extra={"deployment": model.deployment, "error": str(error)})
            return
        wanted, ready = found["spec"].get("replicas", 1), found.get("status", {}).get("readyReplicas", 0)
        self._replicas[model.name] = Replicas(wanted, min(ready, wanted), measured_s)


def topics_by_model(kafka: KafkaSettings, models: Sequence[ModelSettings]) -> dict[str, list[str]]:
    """The topics of each model: those whose requests are for it if they name no model."""
    topics: dict[str, list[str]] = {model.model: [] for model in models}
    for topic in kafka.topics:
        topics.setdefault(topic.model or models[0].model, []).append(topic.name)
    return topics
