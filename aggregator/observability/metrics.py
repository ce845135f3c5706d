"""Count what the pipeline does, per batch, and show where it stands, under the names of the wire contract.

The pipeline calls, once per batch, fetch or event and never per record:

* a batch leaves: `batch_sent`; it comes back whole: `batch_done`; it fails and is queued again: `retried`
* requests are answered, well or not: `answered`; besides: `unwritten`, `dead_lettered`, `expired`, `coalesced`
* Kafka: `commit_failed`, `rebalanced`, `records_lost`, `found_corrupt`
* gRPC refuses what is no request yet: `call_refused`

and gives `watch` a function that describes queues, replicas and partitions, `watch_calls` one of what calls hold,
and `watch_clock` one that tells the clock's skew. A `Metrics` needs no reader: it counts all the same, so tests and
tools make one with `Metrics(Gatherer())`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from aggregator.errors import Code
from aggregator.observability.gathered import Gatherer, Instrument
from aggregator.observability.snapshot import GAUGES, OnLoop, TakeSnapshot, gauge_values
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
_CLOCK_SKEW = Instrument("embed.clock.skew", "s", "how far the clock is ahead of Kafka's records, at most, in a minute")
_CALLS = (
    Instrument("embed.calls.open", "{call}", "gRPC calls under way, those whose message has not come included"),
    Instrument("embed.calls.held", "By", "bytes of gRPC requests under way, and of answers not taken yet"),
    Instrument("embed.calls.streams", "{stream}", "EmbedStream calls that are open"),
)
_RATIO_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Unwritten(StrEnum):
    """Why Kafka will never take a reply."""

    NOT_THERE = "not_there"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    REFUSED = "refused"


class Limit(StrEnum):
    """What refuses a call before it is a request."""

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

    def __init__(self, gatherer: Gatherer, slo_s: float | None = None) -> None:
        """`slo_s`: what is promised for a whole answer; later ones are counted as violations."""
        self._gatherer = gatherer
        self._slo_s = slo_s
        self._define_batches(gatherer)
        self._define_requests(gatherer)
        self._define_texts(gatherer)
        self._define_kafka(gatherer)

    def watch(self, snapshot: TakeSnapshot) -> None:
        """Show what `snapshot` describes; it is called on this event loop whenever a reader collects."""
        on_loop = OnLoop(snapshot)
        self._gatherer.gauges(GAUGES, lambda: gauge_values(on_loop()))

    def watch_clock(self, skew_s: Callable[[], float]) -> None:
        """Show by how much the clock is off those of Kafka's records; asked on the reader's thread."""
        self._gatherer.gauges((_CLOCK_SKEW,), lambda: {_CLOCK_SKEW: {(): skew_s()}})

    def watch_calls(self, held: Callable[[], tuple[int, int, int]]) -> None:
        """Show what calls hold: how many are under way, their bytes, open streams; asked on the reader's thread."""

        def read() -> dict[Instrument, dict[tuple[str, ...], float]]:
            return {instrument: {(): value} for instrument, value in zip(_CALLS, held(), strict=True)}

        self._gatherer.gauges(_CALLS, read)

    def call_refused(self, limit: Limit) -> None:
        """A call was refused before it was a request."""
        self._calls_refused.add(1, limit)

    def batch_sent(self, replica: str, reason: str, tokens: int, queries: int, budget: int) -> None:
        """A batch went out to a replica, for a reason, holding so much of the token budget in force."""
        self._sends.add(1, replica, reason)
        self._batch_tokens.record(tokens, replica)
        self._batch_queries.record(queries, replica)
        self._fill_ratio.record(tokens / budget, replica)

    def batch_done(self, replica: str, result: StepResult) -> None:
        """A batch came back: how long the engine step took, and how long the engine idled before it."""
        self._engine_duration.record(result.report.step_duration_s, replica)
        self._engine_idle.add(result.report.idle_before_s, replica)

    def answered(
        self,
        source: str,
        codes: Mapping[Code, int],
        latencies_s: Sequence[float] | npt.NDArray[np.float64],
    ) -> None:
        """Requests of a source got their answers: so many of each code, after these times since intake."""
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
        """So many queries go again after their batch failed with `code`."""
        self._retries.add(count, code.name)

    def unwritten(self, reason: Unwritten) -> None:
        """Kafka refused a reply for good; its record is to be a dead letter."""
        self._unwritten.add(1, reason)

    def delta_refused(self, count: int) -> None:
        """So many parts of growing texts were refused by Kafka for good."""
        self._deltas_unwritten.add(count)

    def dead_lettered(self, code: Code, count: int) -> None:
        """So many dead letters were acknowledged."""
        self._dead_letters.add(count, code.name)

    def expired(self, count: int) -> None:
        """So many queries' deadlines passed before an engine saw them."""
        self._expired.add(count)

    def coalesced(self, count: int) -> None:
        """So many queries joined an identical one that waits."""
        self._coalesced.add(count)

    def commit_failed(self, count: int = 1) -> None:
        """So many commits failed; they are tried again."""
        self._commit_failures.add(count)

    def rebalanced(self) -> None:
        """The consumer group took this member's partitions back, to spread them anew."""
        self._rebalances.add(1)

    def records_lost(self, topic: str, count: int) -> None:
        """So many records will never be read: deleted by retention, or stepped over as they were corrupt.

        A topic whose count is announced with 0 has a series from then on: Prometheus sees no increase in one that
        appears with its first loss.
        """
        self._lost.add(count, topic)

    def found_corrupt(self, topic: str) -> None:
        """A record batch cannot be read."""
        self._corrupt.add(1, topic)

    def tokenizer_checked(self, checked: int, differing: int) -> None:
        """So many texts were tokenized a second time by the reference tokenizer, and so many came out different."""
        self._tokenizer_checks.add(checked)
        self._tokenizer_differences.add(differing)

    def _define_batches(self, gatherer: Gatherer) -> None:
        replica = ("replica",)
        self._sends = gatherer.counter(
            Instrument("embed.batch.sends", "{batch}", "batches sent, by reason", ("replica", "reason"))
        )
        self._batch_tokens = gatherer.histogram(
            Instrument("embed.batch.tokens", "{token}", "tokens of a batch", replica), _TOKEN_BOUNDS
        )
        self._batch_queries = gatherer.histogram(
            Instrument("embed.batch.queries", "{query}", "queries of a batch", replica), _QUERY_BOUNDS
        )
        self._fill_ratio = gatherer.histogram(
            Instrument("embed.batch.fill_ratio", "1", "tokens of a batch over the token budget", replica), _RATIO_BOUNDS
        )
        self._engine_duration = gatherer.histogram(
            Instrument("embed.engine.duration", "s", "time of the engine step that ran a batch", replica),
            _DURATION_BOUNDS_S,
        )
        self._engine_idle = gatherer.counter(
            Instrument("embed.engine.idle", "s", "time an engine waited for a batch of this aggregator", replica)
        )
        self._retries = gatherer.counter(
            Instrument("embed.retries", "{query}", "queries sent again after their batch failed", ("code",))
        )
        self._tokenizer_checks = gatherer.counter(
            Instrument("embed.tokenizer.checks", "{text}", "texts tokenized again by the reference tokenizer")
        )
        self._tokenizer_differences = gatherer.counter(
            Instrument("embed.tokenizer.differences", "{text}", "texts on which the fast tokenizer was wrong")
        )

    def _define_requests(self, gatherer: Gatherer) -> None:
        self._requests = gatherer.counter(
            Instrument("embed.requests", "{request}", "requests answered", ("source", "code"))
        )
        self._calls_refused = gatherer.counter(
            Instrument("embed.calls.refused", "{call}", "gRPC calls and messages refused at the door", ("limit",))
        )
        for limit in Limit:
            self._calls_refused.add(0, limit)
        self._e2e_duration = gatherer.histogram(
            Instrument("embed.e2e.duration", "s", "time from intake to the answer", ("source",)), _DURATION_BOUNDS_S
        )
        self._slo_violations = gatherer.counter(
            Instrument("embed.slo.violations", "{request}", "requests answered later than promised", ("source",))
        )
        self._unwritten = gatherer.counter(
            Instrument("embed.replies.unwritten", "{reply}", "replies that Kafka refused for good", ("reason",))
        )
        for reason in Unwritten:
            self._unwritten.add(0, reason)
        self._deltas_unwritten = gatherer.counter(
            Instrument("generate.deltas.unwritten", "{record}", "parts of growing texts that Kafka refused for good")
        )
        self._dead_letters = gatherer.counter(
            Instrument("embed.dead_letters", "{record}", "records written to a dead-letter topic", ("code",))
        )
        for code in _DEAD_LETTER_CODES:  # a series that appears with its first dead letter would not alert of it
            self._dead_letters.add(0, code.name)
        self._expired = gatherer.counter(
            Instrument("embed.expired", "{query}", "queries whose deadline passed before an engine saw them")
        )
        self._coalesced = gatherer.counter(
            Instrument("embed.coalesced", "{query}", "queries that shared an identical one's computation")
        )

    def _define_texts(self, gatherer: Gatherer) -> None:
        """By OpenTelemetry's conventions for generative AI."""
        labels = ("gen_ai.request.model", "gen_ai.operation.name")
        self._text_duration = gatherer.histogram(
            Instrument("gen_ai.server.request.duration", "s", "from intake to a text's end", (*labels, "error.type")),
            _DURATION_BOUNDS_S,
        )
        self._first_token = gatherer.histogram(
            Instrument("gen_ai.server.time_to_first_token", "s", "from intake to a text's first token", labels),
            _DURATION_BOUNDS_S,
        )
        self._token_interval = gatherer.histogram(
            Instrument("gen_ai.server.time_per_output_token", "s", "of each token of a text but the first", labels),
            _DURATION_BOUNDS_S,
        )
        self._text_tokens = gatherer.histogram(
            Instrument("gen_ai.client.token.usage", "{token}", "tokens of a text", (*labels, "gen_ai.token.type")),
            _TOKEN_BOUNDS,
        )

    def _define_kafka(self, gatherer: Gatherer) -> None:
        self._rebalances = gatherer.counter(
            Instrument("embed.consumer.rebalances", "{rebalance}", "times the group took this member's partitions back")
        )
        self._commit_failures = gatherer.counter(
            Instrument("embed.commit.failures", "{commit}", "commits that failed and were tried again")
        )
        self._lost = gatherer.counter(
            Instrument(
                "embed.consumer.lost", "{record}", "records deleted, or corrupt, before they were read", ("topic",)
            )
        )
        self._corrupt = gatherer.counter(
            Instrument("embed.consumer.corrupt", "{batch}", "record batches that cannot be read", ("topic",))
        )
