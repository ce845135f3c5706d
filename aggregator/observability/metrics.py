"""The metrics of an aggregator (docs/metrics.md), counted once per batch, fetch or event and never per record.

A `Metrics` needs no reader: tests and tools make one with `Metrics(MetricsBuffer())`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from aggregator.errors import Code
from aggregator.observability.gauges import GAUGES, OnLoop, Values
from aggregator.observability.metrics_buffer import Instrument, MetricsBuffer
from aggregator.replicas.engine import StepResult
from aggregator.replicas.texts.text import Text
from aggregator.request import Failure

_DURATION_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_TOKEN_BOUNDS = (
    *(8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 32768, 65536),
)
_QUERY_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_DEAD_LETTER_CODES = (Code.DATA_LOSS, Code.INTERNAL, Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED)
_CLOCK_SKEW = Instrument(
    "embed.clock.skew", "s", "the most that the clock was ahead of Kafka's records in the last minute"
)
_CALLS = (
    Instrument("embed.calls.open", "{call}", "gRPC calls in flight, those whose message has not arrived included"),
    Instrument("embed.calls.held", "By", "bytes of gRPC requests in flight, and of replies not read yet"),
    Instrument("embed.calls.streams", "{stream}", "open EmbedStream calls"),
)
_RATIO_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Unwritten(StrEnum):
    """Why Kafka will never take a reply."""

    NOT_THERE = "not_there"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    REFUSED = "refused"


class Limit(StrEnum):
    """The limit that refuses a call before it is a request."""

    CALLS = "calls"
    BYTES = "bytes"
    STREAMS = "streams"
    SHARE_OF_CALLS = "share_of_calls"
    SHARE_OF_BYTES = "share_of_bytes"
    SHARE_OF_STREAMS = "share_of_streams"
    ARRIVING = "arriving"  # too many messages are on their way in
    SILENT = "silent"  # no message came


class Metrics:
    """The instruments of one aggregator; used from the event loop's thread only."""

    def __init__(self, buffer: MetricsBuffer, slo_s: float | None = None) -> None:
        """`slo_s`: the latency target; later replies are counted as violations."""
        self._buffer = buffer
        self._slo_s = slo_s
        self._define_batches(buffer)
        self._define_requests(buffer)
        self._define_texts(buffer)
        self._define_kafka(buffer)

    def watch(self, read: Callable[[], Values]) -> None:
        """Show the gauges that `read` gives; it is called on this event loop whenever a reader collects."""
        self._buffer.gauges(GAUGES, OnLoop(read))

    def watch_clock(self, skew_s: Callable[[], float]) -> None:
        """Show how far the clock is ahead of Kafka's records; called on the reader's thread."""
        self._buffer.gauges((_CLOCK_SKEW,), lambda: {_CLOCK_SKEW: {(): skew_s()}})

    def watch_calls(self, held: Callable[[], tuple[int, int, int]]) -> None:
        """Show calls in flight, their bytes and open streams; called on the reader's thread."""

        def read() -> dict[Instrument, dict[tuple[str, ...], float]]:
            return {instrument: {(): value} for instrument, value in zip(_CALLS, held(), strict=True)}

        self._buffer.gauges(_CALLS, read)

    def call_refused(self, limit: Limit) -> None:
        """A call was refused before it was a request."""
        self._calls_refused.add(1, limit)

    def batch_sent(self, replica: str, reason: str, tokens: int, queries: int, budget: int) -> None:
        """A batch was sent to a replica, with the reason for its dispatch and the token budget at that time."""
        self._sends.add(1, replica, reason)
        self._batch_tokens.record(tokens, replica)
        self._batch_queries.record(queries, replica)
        self._fill_ratio.record(tokens / budget, replica)

    def batch_done(self, replica: str, result: StepResult) -> None:
        """A batch was computed: how long the engine step took, and how long the engine idled before it."""
        self._engine_duration.record(result.report.step_duration_s, replica)
        self._engine_idle.add(result.report.idle_before_s, replica)

    def answered(
        self,
        source: str,
        codes: Mapping[Code, int],
        latencies_s: Sequence[float] | npt.NDArray[np.float64],
    ) -> None:
        """Requests of a source were answered: the count of each code, and the times since intake."""
        for code, count in codes.items():
            self._requests.add(count, source, code.name)
        latencies = np.asarray(latencies_s, np.float64)
        self._e2e_duration.record_all(latencies, source)
        if self._slo_s is not None:
            self._slo_violations.add(int(np.count_nonzero(latencies > self._slo_s)), source)

    def generated(self, model: str, text: Text, total_s: float, received_s: float, failure: Failure | None) -> None:
        """A text is complete, or has failed."""
        operation = "chat" if text.messages else "text_completion"
        self._text_duration.record(total_s, model, operation, "" if failure is None else failure.code.name)
        self._text_tokens.record(len(text.prompt_ids) // 4, model, operation, "input")
        self._text_tokens.record(len(text.token_ids), model, operation, "output")
        if text.token_ids:
            first_s = text.first_token_s - received_s
            self._first_token.record(first_s, model, operation)
            if len(text.token_ids) > 1:
                self._token_interval.record((total_s - first_s) / (len(text.token_ids) - 1), model, operation)

    def retried(self, code: Code, count: int) -> None:
        """`count` queries are retried after their batch failed with `code`."""
        self._retries.add(count, code.name)

    def unwritten(self, reason: Unwritten) -> None:
        """Kafka rejected a reply permanently; its record becomes a dead letter."""
        self._unwritten.add(1, reason)

    def delta_refused(self, count: int) -> None:
        """Kafka rejected `count` partial texts permanently."""
        self._deltas_unwritten.add(count)

    def dead_lettered(self, code: Code, count: int) -> None:
        """`count` dead letters were acknowledged."""
        self._dead_letters.add(count, code.name)

    def expired(self, count: int) -> None:
        """The deadlines of `count` queries passed before they were computed."""
        self._expired.add(count)

    def coalesced(self, count: int) -> None:
        """`count` queries joined an identical one in the queue."""
        self._coalesced.add(count)

    def commit_failed(self, count: int = 1) -> None:
        """`count` commits failed; they are tried again."""
        self._commit_failures.add(count)

    def rebalanced(self) -> None:
        """A rebalance revoked this member's partitions."""
        self._rebalances.add(1)

    def records_lost(self, topic: str, count: int) -> None:
        """`count` records will never be read: deleted by retention, or skipped as corrupt.

        A `count` of 0 makes the series of a topic: Prometheus sees no increase in one that appears with its first loss.
        """
        self._lost.add(count, topic)

    def found_corrupt(self, topic: str) -> None:
        """A record batch cannot be read."""
        self._corrupt.add(1, topic)

    def tokenizer_checked(self, checked: int, differing: int) -> None:
        """`checked` texts were tokenized again by the reference; `differing` of them gave other tokens."""
        self._tokenizer_checks.add(checked)
        self._tokenizer_differences.add(differing)

    def _define_batches(self, buffer: MetricsBuffer) -> None:
        replica = ("replica",)
        self._sends = buffer.counter(
            Instrument("embed.batch.sends", "{batch}", "batches sent, by reason", ("replica", "reason"))
        )
        self._batch_tokens = buffer.histogram(
            Instrument("embed.batch.tokens", "{token}", "tokens of a batch", replica), _TOKEN_BOUNDS
        )
        self._batch_queries = buffer.histogram(
            Instrument("embed.batch.queries", "{query}", "queries of a batch", replica), _QUERY_BOUNDS
        )
        self._fill_ratio = buffer.histogram(
            Instrument("embed.batch.fill_ratio", "1", "tokens of a batch over the token budget", replica), _RATIO_BOUNDS
        )
        self._engine_duration = buffer.histogram(
            Instrument("embed.engine.duration", "s", "time of the engine step that ran a batch", replica),
            _DURATION_BOUNDS_S,
        )
        self._engine_idle = buffer.counter(
            Instrument("embed.engine.idle", "s", "time an engine waited for a batch of this aggregator", replica)
        )
        self._retries = buffer.counter(
            Instrument("embed.retries", "{query}", "queries sent again after their batch failed", ("code",))
        )
        self._tokenizer_checks = buffer.counter(
            Instrument("embed.tokenizer.checks", "{text}", "texts tokenized again by the reference tokenizer")
        )
        self._tokenizer_differences = buffer.counter(
            Instrument("embed.tokenizer.differences", "{text}", "texts for which the fast tokenizer gave other tokens")
        )

    def _define_requests(self, buffer: MetricsBuffer) -> None:
        self._requests = buffer.counter(
            Instrument("embed.requests", "{request}", "requests answered", ("source", "code"))
        )
        self._calls_refused = buffer.counter(
            Instrument(
                "embed.calls.refused", "{call}", "gRPC calls and messages refused before they were read", ("limit",)
            )
        )
        for limit in Limit:
            self._calls_refused.add(0, limit)
        self._e2e_duration = buffer.histogram(
            Instrument("embed.e2e.duration", "s", "time from intake to reply", ("source",)), _DURATION_BOUNDS_S
        )
        self._slo_violations = buffer.counter(
            Instrument(
                "embed.slo.violations", "{request}", "requests answered later than the latency target", ("source",)
            )
        )
        self._unwritten = buffer.counter(
            Instrument("embed.replies.unwritten", "{reply}", "replies that Kafka rejected permanently", ("reason",))
        )
        for reason in Unwritten:
            self._unwritten.add(0, reason)
        self._deltas_unwritten = buffer.counter(
            Instrument("generate.deltas.unwritten", "{record}", "partial texts that Kafka rejected permanently")
        )
        self._dead_letters = buffer.counter(
            Instrument("embed.dead_letters", "{record}", "records written to a dead-letter topic", ("code",))
        )
        for code in _DEAD_LETTER_CODES:  # a series that appears with its first dead letter would not alert of it
            self._dead_letters.add(0, code.name)
        self._expired = buffer.counter(
            Instrument("embed.expired", "{query}", "queries whose deadline passed before they were computed")
        )
        self._coalesced = buffer.counter(
            Instrument("embed.coalesced", "{query}", "queries that shared the computation of an identical one")
        )

    def _define_texts(self, buffer: MetricsBuffer) -> None:
        """By OpenTelemetry's conventions for generative AI."""
        labels = ("gen_ai.request.model", "gen_ai.operation.name")
        self._text_duration = buffer.histogram(
            Instrument(
                "gen_ai.server.request.duration", "s", "time from intake to the end of a text", (*labels, "error.type")
            ),
            _DURATION_BOUNDS_S,
        )
        self._first_token = buffer.histogram(
            Instrument(
                "gen_ai.server.time_to_first_token", "s", "time from intake to the first token of a text", labels
            ),
            _DURATION_BOUNDS_S,
        )
        self._token_interval = buffer.histogram(
            Instrument(
                "gen_ai.server.time_per_output_token", "s", "mean time per token of a text after the first", labels
            ),
            _DURATION_BOUNDS_S,
        )
        self._text_tokens = buffer.histogram(
            Instrument("gen_ai.client.token.usage", "{token}", "tokens of a text", (*labels, "gen_ai.token.type")),
            _TOKEN_BOUNDS,
        )

    def _define_kafka(self, buffer: MetricsBuffer) -> None:
        self._rebalances = buffer.counter(
            Instrument("embed.consumer.rebalances", "{rebalance}", "rebalances that revoked this member's partitions")
        )
        self._commit_failures = buffer.counter(
            Instrument("embed.commit.failures", "{commit}", "commits that failed and were tried again")
        )
        self._lost = buffer.counter(
            Instrument(
                "embed.consumer.lost", "{record}", "records deleted, or corrupt, before they were read", ("topic",)
            )
        )
        self._corrupt = buffer.counter(
            Instrument("embed.consumer.corrupt", "{batch}", "record batches that cannot be read", ("topic",))
        )
