"""How many requests may run at once: a fixed number, or what the paper's and our controllers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aggregator.scheduler.budget.sla import SlaController, SlaPolicy
from loadtest.generation.memory import MemoryController, MemoryPolicy
from loadtest.generation.paper_sla import PaperController, PaperPolicy


class Limit(Protocol):
    """Asked before every step, told after it."""

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        """Requests that may run in the next step."""
        ...

    def stepped(self, running: int, duration_s: float) -> None:
        """A step is over in which this many requests ran."""
        ...

    def finished(self, tokens: int) -> None:
        """A request is done; its prompt and output together."""
        ...


class Fixed:
    """Always the same number: what a server is started with."""

    def __init__(self, requests: int) -> None:
        self._requests = requests

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        del waiting, running, now_s
        return self._requests

    def stepped(self, running: int, duration_s: float) -> None:
        """Nothing is learnt."""

    def finished(self, tokens: int) -> None:
        """Nothing is learnt."""


class ByMemory:
    """Pang et al., Algorithm 1."""

    def __init__(self, policy: MemoryPolicy) -> None:
        self.controller = MemoryController(policy)

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        """What fits with the probability that is requested."""
        return self.controller.update(waiting, running, now_s)

    def stepped(self, running: int, duration_s: float) -> None:
        """Times do not matter here."""

    def finished(self, tokens: int) -> None:
        self.controller.observe(tokens)


class ByPaper:
    """Pang et al., Algorithm 2."""

    def __init__(self, target_s: float, max_requests: int) -> None:
        """`target_s`: what a step may take, D_SLA. The search begins in the middle, as the paper's does."""
        self.controller = PaperController(PaperPolicy(1, max_requests, max(1, max_requests // 2)), target_s)

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        del waiting, running, now_s
        return self.controller.size

    def stepped(self, running: int, duration_s: float) -> None:
        """The step's time is learnt; those that run cannot be put back, the paper's N^d."""
        self.controller.observe(running, duration_s, running)

    def finished(self, tokens: int) -> None:
        """Lengths do not matter here."""


class BySla:
    """Our controller of embedding steps, with requests for its tokens."""

    def __init__(self, target_s: float, max_requests: int) -> None:
        """`target_s`: what a step may take."""
        self.controller = SlaController(SlaPolicy(1, max_requests, max(1, max_requests // 2)), target_s)

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        del waiting, running, now_s
        return self.controller.token_budget

    def stepped(self, running: int, duration_s: float) -> None:
        self.controller.observe(running, duration_s, self.controller.token_budget)

    def finished(self, tokens: int) -> None:
        """Lengths do not matter here."""


class Least:
    """The smallest of several limits: min(b_mem, b_SLA)."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits

    def limit(self, waiting: int, running: int, now_s: float) -> int:
        return min(limit.limit(waiting, running, now_s) for limit in self._limits)

    def stepped(self, running: int, duration_s: float) -> None:
        for limit in self._limits:
            limit.stepped(running, duration_s)

    def finished(self, tokens: int) -> None:
        for limit in self._limits:
            limit.finished(tokens)
