"""What became of a step of load: how long its pods took to start, and by when its lag was gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster.watch import Sample


@dataclass(frozen=True, slots=True)
class Step:
    """`records_per_s` more from `at_s` on (wall clock); the scaler drains in `drain_s`, and is asked each `sync_s`."""

    at_s: float
    records_per_s: float
    drain_s: float
    sync_s: float

    def pod_start_s(self, samples: Sequence[Sample]) -> float:
        """The slowest start: from the first look that found so many pods asked for to the first with so many ready."""
        seen = [sample for sample in samples if sample.at_s >= self.at_s]
        counts = range(seen[0].desired + 1, max(sample.desired for sample in seen) + 1)
        return max(
            next(sample.at_s for sample in seen if sample.ready >= count)
            - next(sample.at_s for sample in seen if sample.desired >= count)
            for count in counts
        )

    def emptied_s(self, samples: Sequence[Sample]) -> float:
        """Seconds from the step until less than a second's worth of it waited, and never more again."""
        late_s = max(sample.at_s for sample in samples if sample.lag_records >= self.records_per_s)
        return next(sample.at_s for sample in samples if sample.at_s > late_s) - self.at_s

    def bound_s(self, samples: Sequence[Sample]) -> float:
        """Seconds from the step in which its lag must go: two looks of the autoscaler, a pod's start, the drain."""
        return self.drain_s + self.pod_start_s(samples) + 2 * self.sync_s
