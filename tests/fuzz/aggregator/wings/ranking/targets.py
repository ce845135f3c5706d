"""Fuzz the bodies of requests for scores over HTTP."""

from __future__ import annotations

from functools import partial

from aggregator.wings.ranking.http import read_classify, read_rerank, read_score
from aggregator.wings.ranking.kind import RANKING
from tests.fuzz.http_targets import check_read
from tests.fuzz.target import Target


def check_scores(data: bytes) -> None:
    """A body of /rerank; behind a byte below 3 one of /v2/rerank, /score or /classify."""
    reads = partial(read_rerank, returns_documents=False), read_score, read_classify
    if data and data[0] < len(reads):
        check_read(reads[data[0]], data[1:], RANKING, 1)
    else:
        check_read(partial(read_rerank, returns_documents=True), data, RANKING, 1)


TARGETS = (
    Target("http_scores", check_scores),
)  # fmt: skip
