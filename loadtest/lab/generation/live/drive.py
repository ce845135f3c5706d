"""Work through requests on a real engine under a rule of batching, in time that passes while the engine computes.

The clock is the processor time of the steps, and jumps to the next arrival where there is nothing to do: what else the
machine does changes no figure by much.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from typing_extensions import override

from loadtest.lab.generation.work import Work
from modelserver.engines.engine import EngineLoad, NewTokens, StepLoad
from protos.modelserver.v1 import modelserver_pb2 as pb


class Engine(Protocol):
    """The model server's engine, as far as it is driven here."""

    @property
    def running(self) -> int:
        """Sequences that hold keys and values."""
        ...

    @property
    def load(self) -> EngineLoad:
        """What waits for the next step."""
        ...

    @property
    def has_work(self) -> bool: ...

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling) -> None: ...

    def limit(self, step_tokens: int, sequences: int) -> None: ...

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]: ...


class Rule(ABC):
    """Says what the next step may hold: tokens and sequences; what does not matter to it is not learnt."""

    @abstractmethod
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]: ...

    def stepped(self, load: StepLoad, took_s: float) -> None:  # noqa: B027
        """Hear of a step."""

    def finished(self, prompt_tokens: int, new_tokens: int) -> None:  # noqa: B027
        """Hear of a sequence that is done."""


@dataclass(frozen=True, slots=True)
class Fixed(Rule):
    """A fixed number of sequences at once, as a server is started with."""

    sequences: int
    step_tokens: int

    @override
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]:
        del decoding, running, waiting
        return self.step_tokens, self.sequences


@dataclass(frozen=True, slots=True)
class Static:
    """Batches of `size`, each of which is worked through before the next one begins.

    `padded`: until its longest is done every row of it is computed, as a framework without a scheduler does.
    """

    size: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it; seconds. `recomputed` prompt tokens were read again, for lack of memory, a share of all."""

    seconds: float
    tokens: int
    running: float
    recomputed: float
    between_s: tuple[float, float]
    latency_s: tuple[float, float]
    wait_s: float

    @property
    def tokens_per_s(self) -> float:
        """Requested output tokens a second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class _Times:
    """Of each request in seconds: when its last token came, its first, and all of it."""

    last_s: list[float]
    first_s: list[float]
    done_s: list[float]
    between_s: list[float] = field(default_factory=list[float])


def drive(
    engine: Engine,
    work: Work,
    rule: Rule,
    *,
    seed: int,
    static: Static | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Measured:
    """Until all are done. Prompts are random ids, others for each seed; medians and 99th percentiles, waits' median."""
    rng = np.random.default_rng(seed)
    waiting: deque[int] = deque()
    had = [0] * len(work)
    times = _Times([0.0] * len(work), [0.0] * len(work), [0.0] * len(work))
    now_s = busy_s = sequence_s = 0.0
    come = under_way = read = 0
    while come < len(work) or waiting or engine.has_work:
        if not waiting and not engine.has_work:
            now_s = max(now_s, work.arrived_s[come])
        while come < len(work) and work.arrived_s[come] <= now_s:
            waiting.append(come)
            come += 1
        room = len(waiting) if static is None else 0 if engine.has_work else static.size
        batch = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        longest = max((work.outputs[one] for one in batch), default=0)
        for one in batch:
            wanted = longest if static is not None and static.padded else work.outputs[one]
            prompt = rng.integers(100, 10_000, work.prompts[one]).tolist()
            engine.add(str(one), prompt, pb.Sampling(max_tokens=wanted, temperature=0.0, ignore_eos=True))
        under_way += len(batch)
        engine.limit(*rule.bounds(engine.load.decoding, engine.running, under_way - engine.running))
        began_s = clock()
        new, load = engine.step()
        took_s = clock() - began_s
        now_s += took_s
        busy_s += took_s
        sequence_s += took_s * len(new)
        read += load.prefill_tokens
        rule.stepped(load, took_s)
        for each in new:
            one = int(each.name)
            _note(times, one, had[one], work.outputs[one], now_s)
            had[one] += len(each.token_ids)
            if had[one] == work.outputs[one]:
                rule.finished(work.prompts[one], work.outputs[one])
                under_way -= 1
    arrived_s = np.array(work.arrived_s)
    latency_s = np.array(times.done_s) - arrived_s
    return Measured(
        seconds=now_s - work.arrived_s[0],
        tokens=sum(work.outputs),
        running=sequence_s / busy_s,
        recomputed=read / sum(work.prompts) - 1.0,
        between_s=_percentiles(times.between_s, 50, 99),
        latency_s=_percentiles(latency_s.tolist(), 50, 90),
        wait_s=float(np.median(np.array(times.first_s) - arrived_s)),
    )


def _note(times: _Times, one: int, had: int, wanted: int, now_s: float) -> None:
    """A token came; those beyond what was wanted are a padded batch's."""
    if had >= wanted:
        return
    if had:
        times.between_s.append(now_s - times.last_s[one])
    else:
        times.first_s[one] = now_s
    times.last_s[one] = now_s
    if had + 1 == wanted:
        times.done_s[one] = now_s


def _percentiles(values: Sequence[float], one: int, other: int) -> tuple[float, float]:
    low, high = np.percentile(values or [0.0], [one, other])
    return float(low), float(high)
