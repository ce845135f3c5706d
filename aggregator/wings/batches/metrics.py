"""The metrics of the Batch API; each batch, line and file is counted by the aggregator that wrote its object."""

from __future__ import annotations

from aggregator.wings.batches.objects import Head
from k8s.pod.metrics_buffer import MetricsBuffer


class BatchMetrics:
    """Its instruments; used from the event loop's thread only."""

    def __init__(self, buffer: MetricsBuffer) -> None:
        self.ended = buffer.counter("tokenbatch.batch_api.ended", "{batch}", "batches that ended, by status", "status")
        self.lines = buffer.counter(
            "tokenbatch.batch_api.lines", "{line}", "lines of batches that were answered", "result"
        )
        self.bytes = buffer.counter(
            "tokenbatch.batch_api.size", "By", "bytes of uploaded files, and of what batches wrote", "kind"
        )

    def uploaded(self, size_bytes: int) -> None:
        self.bytes.add(size_bytes, "uploaded")

    def written(self, head: Head) -> None:
        """A part that nobody wrote before."""
        ended = head.expired + head.cancelled
        for result, lines in (("completed", head.completed), ("failed", head.failed - ended), ("ended", ended)):
            if lines:
                self.lines.add(lines, result)
        self.bytes.add(head.size_bytes, "written")
