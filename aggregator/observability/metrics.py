"""The metrics of an aggregator (docs/metrics.md), counted once per batch, fetch or event and never per record.

A `Metrics` needs no reader: tests and tools make one with `Metrics(MetricsBuffer())`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aggregator.errors import Code
from aggregator.observability.costs import FREE, Costs
from aggregator.observability.observer import Observer
from aggregator.observability.tracing import PROVIDER
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task
from k8s.pod.metrics_buffer import Instrument, MetricsBuffer

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
STEP_SECONDS = (0.0002, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, *SECONDS[2:])
"""Fine from 0.2 to 4 ms: a GPU takes 0.35 ms for a short step with CUDA graphs, and 2 ms without."""
_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""As OpenTelemetry's conventions want them for calls."""
TOKENS = (
    *(8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 32768, 65536),
)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_DEAD_LETTER_CODES = (Code.DATA_LOSS.name, Code.INTERNAL.name, Code.INVALID_ARGUMENT.name, Code.PERMISSION_DENIED.name)
_CALLS = (
    Instrument(
        "tokenbatch.calls.open", "{call}", "gRPC and HTTP calls in flight, those whose message has not arrived included"
    ),
    Instrument("tokenbatch.calls.held", "By", "bytes of gRPC and HTTP requests in flight, and of replies not read yet"),
    Instrument("tokenbatch.calls.streams", "{stream}", "open EmbedStream calls"),
)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Unwritten(StrEnum):
    """Why Kafka or Redis will never take a reply."""

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
    SLOW = "slow"  # others need the room of a message that arrives slowly
    ARRIVING = "arriving"  # too many messages are on their way in
    SILENT = "silent"  # no message came


class HttpClosed(StrEnum):
    """Why the aggregator closed an HTTP connection by itself."""

    CROWDED = "crowded"  # there are too many
    UNREAD = "unread"  # its client does not read the response


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the start: requests (`answered`, `failed` of them, `refused`), queries, records, commits."""

    answered: float
    failed: float
    refused: float
    expired: float
    coalesced: float
    dead_letters: float
    lost: float
    ahead: float
    commit_failures: float


class Metrics:
    """The instruments of one aggregator; used from the event loop's thread only.

    Those that count one thing are attributes: `metrics.expired.add(1)`.
    """

    def __init__(
        self,
        buffer: MetricsBuffer,
        slo_s: float | None = None,
        costs: Costs = FREE,
    ) -> None:
        """`slo_s`: the latency target; later replies are counted as violations."""
        self.observer = Observer()
        self.costs = costs
        self.buffer = buffer
        self._slo_s = slo_s
        self._define_batches(buffer)
        self._define_requests(buffer)
        self._define_embeddings(buffer)
        self._define_brokers(buffer)

    def watch_calls(self, held: Callable[[], tuple[int, int, int]]) -> None:
        """Show calls in flight, their bytes and open streams; called on the reader's thread."""

        def read() -> dict[Instrument, dict[tuple[str, ...], float]]:
            return {instrument: {(): value} for instrument, value in zip(_CALLS, held(), strict=True)}

        self.buffer.gauges(_CALLS, read)

    def totals(self) -> Totals:
        """The sums since the start that the page shows as rates."""
        requests = self._requests.sums.items()
        refused = sum(count for (_, code), count in requests if code == Code.RESOURCE_EXHAUSTED.name)
        return Totals(
            answered=self._requests.total,
            failed=sum(count for (_, code), count in requests if code != Code.OK.name),
            refused=refused + self.calls_refused.total,
            expired=self.expired.total,
            coalesced=self.coalesced.total,
            dead_letters=self.dead_letters.total,
            lost=self.records_lost.total,
            ahead=self.records_ahead.total,
            commit_failures=self.commit_failures.total,
        )

    def batch_sent(self, replica: str, reason: str, tokens: int, queries: int, budget: int) -> None:
        self._sends.add(1, replica, reason)
        self._batch_tokens.record(tokens, replica)
        self._batch_queries.record(queries, replica)
        self._fill_ratio.record(tokens / budget, replica)

    def batch_done(self, batch: Batch, task: Task, report: StepReport, now_s: float) -> None:
        """A batch was computed: how long the engine step took, and how long the engine idled before it."""
        self._engine_duration.record(report.step_duration_s, batch.replica.name)
        self._engine_idle.add(report.idle_before_s, batch.replica.name)
        self.observer.batch_done(batch, task, report, now_s)

    def embedded(self, model: str, batch: Batch, code: Code, now_s: float) -> None:
        """A batch that was sent came back, with vectors or this error."""
        error = "" if code is Code.OK else code.name
        self._embeddings_duration.record(now_s - batch.packed_s, model, "embeddings", PROVIDER, error)
        if code is Code.OK:
            self._embeddings_tokens.record(batch.token_count, model, "embeddings", PROVIDER)

    def answered(
        self,
        source: str,
        codes: Mapping[Code, int],
        latencies_s: Sequence[float],
        queries: int | None = None,
    ) -> None:
        """Requests of a source were answered: the count of each code, and the times since intake.

        `queries`: in all of them; one each when absent.
        """
        for code, count in codes.items():
            self._requests.add(count, source, code.name)
        self._e2e_duration.record_all(latencies_s, source)
        self.observer.answered(source, latencies_s, len(latencies_s) if queries is None else queries)
        if self._slo_s is not None:
            self._slo_violations.add(sum(latency_s > self._slo_s for latency_s in latencies_s), source)

    def tokenizer_checked(self, checked: int, differing: int) -> None:
        """`checked` texts were tokenized again by the reference; `differing` of them gave other tokens."""
        self._tokenizer_checks.add(checked)
        self._tokenizer_differences.add(differing)

    def _define_batches(self, buffer: MetricsBuffer) -> None:
        self._sends = buffer.counter(
            "tokenbatch.batch.sends", "{batch}", "batches sent, by reason", "replica", "reason"
        )
        self._batch_tokens = buffer.histogram(
            "tokenbatch.batch.tokens", "{token}", "tokens of a batch", TOKENS, "replica"
        )
        self._batch_queries = buffer.histogram(
            "tokenbatch.batch.queries", "{query}", "queries of a batch", _QUERIES, "replica"
        )
        self._fill_ratio = buffer.histogram(
            "tokenbatch.batch.fill_ratio", "1", "tokens of a batch over the token budget", _RATIOS, "replica"
        )
        self._engine_duration = buffer.histogram(
            "tokenbatch.engine.duration", "s", "time of the engine step that ran a batch", STEP_SECONDS, "replica"
        )
        self._engine_idle = buffer.counter(
            "tokenbatch.engine.idle", "s", "time an engine waited for a batch of this aggregator", "replica"
        )
        self.retries = buffer.counter(
            "tokenbatch.retries", "{query}", "queries sent again after their batch failed", "code"
        )
        self._tokenizer_checks = buffer.counter(
            "tokenbatch.tokenizer.checks", "{text}", "texts tokenized again by the reference tokenizer"
        )
        self._tokenizer_differences = buffer.counter(
            "tokenbatch.tokenizer.differences", "{text}", "texts for which the fast tokenizer gave other tokens"
        )

    def _define_requests(self, buffer: MetricsBuffer) -> None:
        self._requests = buffer.counter("tokenbatch.requests", "{request}", "requests answered", "source", "code")
        self.calls_refused = buffer.counter(
            "tokenbatch.calls.refused",
            "{call}",
            "gRPC and HTTP calls and messages refused before they were read",
            "limit",
        )
        self.http_responses = buffer.counter("tokenbatch.http.responses", "{response}", "responses over HTTP", "status")
        self.http_duration = buffer.histogram(
            "http.server.request.duration",
            "s",
            "time of a request over HTTP, from its head to its whole response",
            _CALL_SECONDS,
            "http.request.method",
            "url.scheme",
            "http.route",
            "http.response.status_code",
            "error.type",
        )
        self.rpc_duration = buffer.histogram(
            "rpc.server.call.duration",
            "s",
            "time of a gRPC call",
            _CALL_SECONDS,
            "rpc.system.name",
            "rpc.method",
            "rpc.response.status_code",
            "error.type",
        )
        self.http_closed = buffer.counter(
            "tokenbatch.http.closed",
            "{connection}",
            "HTTP connections closed: there are too many (crowded), or the client does not read (unread)",
            "reason",
        )
        self._e2e_duration = buffer.histogram(
            "tokenbatch.e2e.duration", "s", "time from intake to reply", SECONDS, "source"
        )
        self._slo_violations = buffer.counter(
            "tokenbatch.slo.violations", "{request}", "requests answered later than the latency target", "source"
        )
        self.replies_unwritten = buffer.counter(
            "tokenbatch.replies.unwritten", "{reply}", "replies that Kafka or Redis rejected permanently", "reason"
        )
        self.dead_letters = buffer.counter(
            "tokenbatch.dead_letters", "{record}", "records written to a dead-letter topic", "code"
        )
        for counter, labels in (
            (self.calls_refused, Limit),
            (self.http_closed, HttpClosed),
            (self.replies_unwritten, Unwritten),
            (self.dead_letters, _DEAD_LETTER_CODES),
        ):
            for label in labels:  # a series that appears with its first event would not alert of it
                counter.add(0, label)
        self.expired = buffer.counter(
            "tokenbatch.expired", "{query}", "queries whose deadline passed before they were computed"
        )
        self.coalesced = buffer.counter(
            "tokenbatch.coalesced", "{query}", "queries that shared the computation of an identical one"
        )

    def _define_embeddings(self, buffer: MetricsBuffer) -> None:
        """By OpenTelemetry's conventions for generative AI."""
        labels = ("gen_ai.request.model", "gen_ai.operation.name", "gen_ai.provider.name")
        self._embeddings_duration = buffer.histogram(
            "gen_ai.client.embeddings.duration",
            "s",
            "time of a batch from its packing until its vectors came",
            SECONDS,
            *labels,
            "error.type",
        )
        self._embeddings_tokens = buffer.histogram(
            "gen_ai.client.embeddings.operation.input_tokens", "{token}", "tokens of a batch", TOKENS, *labels
        )

    def _define_brokers(self, buffer: MetricsBuffer) -> None:
        self.source_events = buffer.counter(
            "tokenbatch.source.events",
            "{event}",
            "errors of a source's server, and requests that it lost",
            "source",
            "event",
        )
        self.rebalances = buffer.counter(
            "tokenbatch.consumer.rebalances", "{rebalance}", "rebalances that revoked this member's partitions"
        )
        self.commit_failures = buffer.counter(
            "tokenbatch.commit.failures", "{commit}", "commits that failed and were tried again"
        )
        self.records_lost = buffer.counter(
            "tokenbatch.consumer.lost",
            "{record}",
            "records deleted before they were read, or in a corrupt batch",
            "topic",
        )
        self.records_ahead = buffer.counter(
            "tokenbatch.consumer.ahead",
            "{record}",
            "records whose timestamp was more than 5 s in the future: they do not expire",
            "topic",
        )
        self.batches_untimely = buffer.counter(
            "tokenbatch.producer.untimely",
            "{batch}",
            "batches that a broker refused for the time of their records; they are tried again",
            "topic",
        )
        self.corrupt_batches = buffer.counter(
            "tokenbatch.consumer.corrupt",
            "{batch}",
            "record batches that cannot be decoded; each becomes one dead letter",
            "topic",
        )
