"""An aggregator that closes batches by count or time: `python -m loadtest.bench.programs.plain_aggregator 64 0.01`.

A batch is closed once so many queries wait, or once the oldest of them has waited so many seconds; with 0 queries by
time alone. It goes to the server with the fewest batches. All else is the product.
"""

from __future__ import annotations

if __name__ == "__main__":
    from k8s.pod.begin import begin

    begin()

import sys

from typing_extensions import override

from aggregator.__main__ import main
from aggregator.admission import model_revision
from aggregator.scheduler.dispatcher import Dispatcher, Due
from aggregator.scheduler.replica_choice import SendReason

_DEPTH = 2  # batches at a server: one runs and one waits, so that the network's time costs nothing


class PlainDispatcher(Dispatcher):
    """First come, first served; a batch is `queries` at most, and no more tokens than a step holds."""

    queries, wait_s = 0, 0.0

    @override
    def _send_queued(self, due: Due, now_s: float, max_items: int, always: SendReason | None) -> None:
        while len(self.queue):
            replica = min(self.replicas.values(), key=lambda each: each.batches_out, default=None)
            if replica is None or replica.batches_out >= _DEPTH:
                return
            oldest = (waiting.oldest() for waiting in self.queue.classes)
            closes_s = min(query.enqueued_s for query in oldest if query is not None) + self.wait_s
            full = 0 < self.queries <= len(self.queue)
            if not full and now_s < closes_s and always is None:
                due.wake_s = min(due.wake_s, closes_s)
                return
            packed = self.packer.pack(replica.largest, now_s, max_items=min(max_items, self.queries or max_items))
            reason = always or (SendReason.FULL if full else SendReason.AGED)
            due.batches.append(self._batch(replica, packed.items, reason, None, now_s, budget=packed.token_count))


if __name__ == "__main__":
    PlainDispatcher.queries, PlainDispatcher.wait_s = int(sys.argv[1]), float(sys.argv[2])
    model_revision.Dispatcher = PlainDispatcher  # type: ignore[attr-defined]
    sys.exit(main([]))
