"""The core's sender with production's refusal of calls that cannot be answered in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from aggregator.scheduler.outlook import Outlook, forecast
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority, Query
from loadtest.simulate.core_sender import CoreSender
from loadtest.simulate.parcel import Parcel


class OutlookSender(CoreSender):
    """One aggregator that forecasts for each query when it would be done."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._outlook = Outlook(self.dispatcher.queue)

    @override
    def put(self, now_s: float, arrived_s: float, deadline_s: float, token_count: int) -> bool:
        found = forecast(self.dispatcher.lanes.values(), now_s)
        about = Priority.INTERACTIVE, "", deadline_s, token_count
        if found is not None and self._outlook.is_late(found, *about):
            return False
        if not super().put(now_s, arrived_s, deadline_s, token_count):
            return False
        self._outlook.charge(*about)
        return True

    @override
    def done(self, parcel: Parcel, report: StepReport, now_s: float) -> Sequence[float]:
        self._release(query for entry in parcel.body.entries for query in entry.waiters if not query.done)
        return super().done(parcel, report, now_s)

    @override
    def expire(self, queries: Iterable[Query]) -> None:
        queries = list(queries)
        self._release(queries)
        super().expire(queries)

    def _release(self, queries: Iterable[Query]) -> None:
        for query in queries:
            self._outlook.release(query.priority, query.tenant, query.deadline_s, query.index)
