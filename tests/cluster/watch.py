"""Look at a release while it scales: twice a second, the figures that the plot in docs/scaling.md is drawn from."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import aiohttp
from aiokafka.errors import KafkaError

from loadtest.kit.prometheus import sums, totals
from tests.chart.rendering import kubectl
from tests.cluster.release import DEPLOYMENT, NAMESPACE, Object, is_ready
from tests.cluster.traffic import Traffic
from tests.support.patience import patient

EVERY_S = 0.5
_PORT = 8001
_AGGREGATOR_PORT, _MODEL_SERVER_PORT = 9464, 9465
_METRICS = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}"
_PAGE_S = 2.0
_BUDGET = re.compile(r"^tokenbatch_token_budget\S* ([0-9.e+]+)$", re.MULTILINE)
_BATCHES = "tokenbatch_engine_batches_total"
# ValueError and KeyError: what an API server, or the proxy before it, says that has too much to do.
_TROUBLE = (aiohttp.ClientError, TimeoutError, KafkaError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood at `at_s`, by the wall clock; `required` is None while the scaler said that it does not know."""

    at_s: float
    required: float | None
    desired: int
    ready: int
    lag_records: int
    token_budget: float
    sent: int


@dataclass
class Watch:
    """`samples` grow while it runs; `ready_s` and `first_batch_s` say when each model server became what."""

    traffic: Traffic
    samples: list[Sample] = field(default_factory=list[Sample])
    ready_s: dict[str, float] = field(default_factory=dict[str, float])
    first_batch_s: dict[str, float] = field(default_factory=dict[str, float])
    _http: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Look on while inside."""
        command = [str(kubectl()), "proxy", f"--port={_PORT}"]
        proxy = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PAGE_S)) as self._http:
            tasks = [asyncio.create_task(each, name="watch") for each in (self._figures(), self._pods())]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                proxy.terminate()
                await proxy.wait()

    async def until(self, holds: Any, what: str, timeout_s: float) -> Sample:
        """Wait for a sample of which it holds. Raises TimeoutError."""
        deadline_s = time.monotonic() + patient(timeout_s)
        while not self.samples or not holds(self.samples[-1]):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {timeout_s:.0f} s: {what}; last {self.samples[-1:]}")
            await asyncio.sleep(EVERY_S / 2)
        return self.samples[-1]

    async def _figures(self) -> None:
        while True:
            with contextlib.suppress(*_TROUBLE):
                self.samples.append(await self._sample())
            await asyncio.sleep(EVERY_S)

    async def _sample(self) -> Sample:
        metric, deployment, lag, budget = await asyncio.gather(
            self._get(f"{_METRICS}/tokenbatch_required_replicas"),
            self._get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{DEPLOYMENT}"),
            self.traffic.lag(),
            self._budget(),
        )
        items = metric.get("items", [])
        return Sample(
            at_s=time.time(),
            required=quantity(items[0]["value"]) if items else None,
            desired=deployment["spec"]["replicas"],
            ready=deployment["status"].get("readyReplicas", 0),
            lag_records=lag,
            token_budget=budget,
            sent=len(self.traffic.load.acknowledged),
        )

    async def _pods(self) -> None:
        while True:
            with contextlib.suppress(*_TROUBLE):
                for pod in await self._pods_of("model-server"):
                    await self._look_at(pod)
            await asyncio.sleep(EVERY_S)

    async def _look_at(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if name in self.first_batch_s or not is_ready(pod):
            return
        (ready,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
        self.ready_s[name] = datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()
        if sums(await self._page(pod, _MODEL_SERVER_PORT))[_BATCHES]:
            self.first_batch_s[name] = time.time()

    async def _budget(self) -> float:
        """The mean token budget that the aggregators give to a model server."""
        pages = [await self._page(pod, _AGGREGATOR_PORT) for pod in await self._pods_of("aggregator") if is_ready(pod)]
        budgets = [float(found) for page in pages for found in _BUDGET.findall(page)]
        return sum(budgets) / len(budgets) if budgets else 0.0

    async def _pods_of(self, component: str) -> list[Object]:
        found = await self._get(
            f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component={component}"
        )
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    async def _page(self, pod: Object, port: int) -> str:
        async with self._http.get(f"http://{pod['status']['podIP']}:{port}/metrics") as page:
            text: str = await page.text()
            return text

    async def _get(self, path: str) -> Object:
        async with self._http.get(f"http://127.0.0.1:{_PORT}{path}") as answer:
            found: Object = json.loads(await answer.text())
            return found


def has_worked(pod: Object) -> bool:
    """Whether a model server has run a batch. Raises OSError."""
    return totals(f"{pod['status']['podIP']}:{_MODEL_SERVER_PORT}")[_BATCHES] > 0


def quantity(text: str) -> float:
    """A Kubernetes quantity such as 2500m."""
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)
