"""Read figures from a Prometheus endpoint."""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """An aggregator's counters of its batches; differences of two readings say it of what lay between."""

    batches: float
    tokens: float
    fills: float

    def __sub__(self, earlier: BatchFigures) -> BatchFigures:
        return BatchFigures(self.batches - earlier.batches, self.tokens - earlier.tokens, self.fills - earlier.fills)

    @property
    def tokens_per_batch(self) -> float:
        """Mean; 0 without batches."""
        return self.tokens / self.batches if self.batches else 0.0

    @property
    def token_budget(self) -> float:
        """Mean token budget, weighted by the tokens of the batches; 0 without batches."""
        return self.tokens / self.fills if self.fills else 0.0

    @property
    def fill(self) -> float:
        """Mean share of the token budget that batches used; 0 without batches."""
        return self.fills / self.batches if self.batches else 0.0


def batch_figures(address: str) -> BatchFigures:
    """The totals of all replicas of the aggregator whose monitoring listens at `address`. Raises OSError."""
    found = totals(address)
    return BatchFigures(
        batches=found["tokenbatch_batch_tokens_count"],
        tokens=found["tokenbatch_batch_tokens_sum"],
        fills=found["tokenbatch_batch_fill_ratio_sum"],
    )


def totals(address: str) -> dict[str, float]:
    """The metrics of the process whose monitoring listens at `address`, as `sums` adds it up. Raises OSError."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as response:
        return sums(response.read().decode())


def sums(text: str) -> dict[str, float]:
    """Each name's samples added up over all labels; 0 for a name that is not there."""
    added: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            added[sample.name] += sample.value
    return added
