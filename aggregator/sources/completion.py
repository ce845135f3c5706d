"""Settle requests: answer, have it acknowledged, let go of what they held; and know what is not settled yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from aggregator.admission.models import Model, Models
from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.request import Failure, Request
from aggregator.scheduler.work_item import Source
from aggregator.sources.kafka.consumer.committed_offset import Lease
from aggregator.sources.source import KafkaPath

_GONE = Failure(Code.CANCELLED, "the caller went away")
_LEFT = Failure(Code.CANCELLED, "the record is left to whoever reads it next")


class Settling:
    """The end of every request that was taken in, and what its end frees: bounds, offsets, topics that were held."""

    def __init__(self, models: Models, kafka: KafkaPath | None, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._models = models
        self._kafka = kafka
        self._metrics = metrics
        self._clock = clock
        self._unsettled = 0
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._urged: frozenset[int] = frozenset()

    def expect(self, count: int) -> None:
        """So many requests were taken in; each is to be settled, given up or forgotten, once."""
        self._unsettled += count
        self._all_settled.clear()

    async def drained(self) -> None:
        """Until none is left that was taken in, and everything is written."""
        await self._all_settled.wait()
        if self._kafka is not None:
            await self._kafka.written()

    async def settle(self, requests: Sequence[Request]) -> None:
        """Answer requests whose every input has an outcome; a Kafka offset is freed once its reply is acknowledged."""
        calls = [request for request in requests if request.source is Source.GRPC]
        for call in calls:
            call.origin.settle()
        if calls:
            self._let_go(calls)
        if len(calls) < len(requests):
            records = [request for request in requests if request.source is Source.KAFKA] if calls else requests
            if self._kafka is not None:
                await self._kafka.settle(records, self._let_go)

    def give_up(self, request: Request) -> None:
        """A caller went away: take its inputs out of the queue; what is under way is computed for nobody."""
        if request.remaining:
            request.given_up = True
            request.fail(_GONE)
            request.inputs = ()  # whoever still has the request at hand need not keep its texts
            if request.held is not None:
                for query, entry in request.places:
                    request.held.queue.cancel(query, entry)
            self._let_go([request])

    def forget(self, model: Model, gone: Callable[[Request], bool]) -> None:
        """Drop waiting requests of a model without an answer: whoever reads their records next redoes them."""
        forgotten = model.take_out(gone)
        for request in forgotten:
            request.fail(_LEFT)
        self._let_go(forgotten)

    def hold_topics(self) -> None:
        """Hold the topics whose models can take no more of their class, and no others."""
        if self._kafka is not None:
            find, full = self._models.find, {model.name: model.full() for model in self._models}
            self._kafka.hold(
                lambda name: not find(name).available, lambda name, priority: priority in full[find(name).name]
            )

    def _let_go(self, requests: Sequence[Request]) -> None:
        """Free what settled requests held, and count them."""
        now_s = self._clock()
        for source in Source:
            answered = [request for request in requests if request.source is source]
            if answered:
                failed = Counter(request.code for request in answered if request.failed)
                codes = {Code.OK: len(answered) - failed.total(), **failed}
                self._metrics.answered(source, codes, [now_s - request.received_s for request in answered])
        for request in requests:
            request.account(now_s)
            request.release()
        self._unsettled -= len(requests)
        if not self._unsettled:
            self._all_settled.set()
        self.hold_topics()
        if self._kafka is not None:
            self._urge(self._kafka.stuck())

    def _urge(self, stuck: Sequence[Lease]) -> None:
        """Age the inputs that hold a partition's watermark back."""
        leases = frozenset(id(lease) for lease in stuck)
        if leases != self._urged:
            self._urged = leases
            for model in self._models:
                for query, (queue, entry) in model.waiting():
                    if query.owner.source is Source.KAFKA and id(query.owner.origin.lease) in leases:
                        queue.urge(entry)
