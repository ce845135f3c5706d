"""The outcome of a simulation: counts, latencies, fill, traces."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from loadtest.simulate.load import Ints, Times

STRETCH_S = 30.0
_CALM = 0.5
"""Of what the pods can do: no second of a calm stretch brings more."""
_HELD_S = 0.1
"""Of work, at most, is still held where a stretch may be left out."""

Weights = npt.NDArray[np.float64]


class Stretches:
    """The stretches of a load, each of which is busy, calm, or calm and left out; a share of the calm ones stays.

    What is left out still counts as demand. Those that stay stand for it: see `weights`.
    """

    def __init__(self, share: float, times_s: Times, lengths: Ints, rng: np.random.Generator) -> None:
        count = 1 + int(times_s[-1] // STRETCH_S) if len(times_s) else 1
        seconds = np.bincount(times_s.astype(np.int64), lengths, minlength=int(count * STRETCH_S))
        self._peaks: list[float] = seconds.reshape(count, -1).max(axis=1).tolist()
        self._sizes = np.bincount((times_s // STRETCH_S).astype(np.int64), minlength=count)
        self._stays: list[bool] = (rng.random(count) < share).tolist()
        self._calm = np.zeros(count, dtype=np.bool_)
        self._left_out = np.zeros(count, dtype=np.bool_)

    def leaves_out(self, number: int, held_tokens: int, tokens_per_s: float) -> bool:
        """Whether a stretch that begins now is not simulated, given what waits and what the pods can do."""
        calm = held_tokens <= _HELD_S * tokens_per_s and self._peaks[number] <= _CALM * tokens_per_s
        self._calm[number] = calm
        first = not (self._calm & ~self._left_out)[:number].any()
        self._left_out[number] = calm and not self._stays[number] and not first
        return bool(self._left_out[number])

    def weights(self, came_s: Times) -> Weights:
        """How many queries each of these stands for, which came in stretches that were simulated."""
        stays = self._calm & ~self._left_out
        calm, simulated = self._sizes[self._calm].sum(), self._sizes[stays].sum()
        of_stretch = np.where(stays, calm / max(1, simulated), 1.0)
        found: Weights = of_stretch[(came_s // STRETCH_S).astype(np.int64)]
        return found


_FILL_BINS = 20


@dataclass(slots=True)
class Record:
    """The counts while time passes. Only queries that arrive after `from_s` count."""

    from_s: float
    arrived: int = 0
    backlog_answered: int = 0
    refused: int = 0
    came_s: array[float] = field(default_factory=lambda: array("d"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))
    fill: Counter[int] = field(default_factory=Counter[int])
    batch_tokens: Counter[int] = field(default_factory=Counter[int])
    batches: int = 0
    tokens: int = 0
    trace: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    stretches: Stretches | None = None

    def sent(self, tokens: int, budget: int, now_s: float) -> None:
        """A batch went out."""
        if now_s >= self.from_s:
            self.batches += 1
            self.tokens += tokens
            self.fill[min(_FILL_BINS - 1, _FILL_BINS * tokens // budget)] += 1
            self.batch_tokens[tokens // 50 * 50] += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run; times in seconds, rates per second of the load's duration after the warm-up."""

    scenario: str
    policy: str
    seed: int
    arrived: int
    answered: int
    refused: int
    expired: int
    throughput: float
    tokens_per_s: float
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    slo_s: float
    in_time: float
    goodput: float
    mean_batch_tokens: float
    mean_fill: float
    utilisation: float
    pod_s: float
    fill: tuple[int, ...]
    batch_tokens: tuple[tuple[int, int], ...]
    trace: tuple[dict[str, float], ...] = ()
    backlog_per_s: float = 0.0

    def to_json(self) -> str:
        """One line, the same for the same run."""
        return json.dumps(asdict(self), sort_keys=True)


def summarise(
    record: Record,
    *,
    names: tuple[str, str, int],
    expired: int,
    slo_s: float,
    seconds: float,
    busy: tuple[float, float],
) -> Outcome:
    """`names`: scenario, policy, seed; `seconds`: of the load after the warm-up; `busy`: busy and all pod seconds.

    Answers of stretches that were left out are those of the like; batches and busy seconds are of the rest only.
    """
    latency = np.frombuffer(record.latency_s, dtype=np.float64) if record.latency_s else np.array([np.inf])
    weights = None
    if record.stretches is not None and record.latency_s:
        weights = record.stretches.weights(np.frombuffer(record.came_s, dtype=np.float64))
    answered = len(record.latency_s) if weights is None else round(weights.sum())
    in_time = round(float(np.sum(latency <= slo_s if weights is None else weights[latency <= slo_s])))
    wanted = [50, 90, 95, 99]
    if weights is None:
        quantiles = np.percentile(latency, wanted, method="higher")
    else:
        quantiles = np.percentile(latency, wanted, method="inverted_cdf", weights=weights)
    p50, p90, p95, p99 = (float(value) for value in quantiles)
    bins = tuple(record.fill[number] for number in range(_FILL_BINS))
    fills = sum((number + 0.5) / _FILL_BINS * count for number, count in enumerate(bins))
    return Outcome(
        *names,
        arrived=record.arrived,
        answered=answered,
        refused=record.refused,
        expired=expired,
        throughput=answered / seconds,
        tokens_per_s=record.tokens / seconds,
        mean_s=float(np.average(latency, weights=weights)),
        p50_s=p50,
        p90_s=p90,
        p95_s=p95,
        p99_s=p99,
        slo_s=slo_s,
        in_time=in_time / max(1, record.arrived),
        goodput=(in_time + record.backlog_answered) / seconds,
        mean_batch_tokens=record.tokens / max(1, record.batches),
        mean_fill=fills / max(1, record.batches),
        utilisation=busy[0] / max(1e-9, busy[1]),
        pod_s=busy[1],
        fill=bins,
        batch_tokens=tuple(sorted(record.batch_tokens.items())),
        trace=tuple(record.trace),
        backlog_per_s=record.backlog_answered / seconds,
    )
