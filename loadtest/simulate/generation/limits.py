"""How many requests may run at once: a fixed number, or what the paper's controllers say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from loadtest.simulate.generation.memory import MemoryController, MemoryPolicy
from loadtest.simulate.paper_sla import PaperController, PaperPolicy


class Limit(ABC):
    """Asked before every step, told after it; what does not matter to it is not learnt."""

    @abstractmethod
    def limit(self, waiting: int, running: int, now_s: float) -> int:
        """Requests that may run in the next step."""

    def stepped(self, running: int, duration_s: float) -> None:  # noqa: B027
        """A step is over in which this many requests ran."""

    def finished(self, tokens: int) -> None:  # noqa: B027
        """A request is done; its prompt and output together."""


class Fixed(Limit):
    """Always the same number: what a server is started with."""

    def __init__(self, requests: int) -> None:
        self._requests = requests

    @override
    def limit(self, waiting: int, running: int, now_s: float) -> int:
        del waiting, running, now_s
        return self._requests


class ByMemory(Limit):
    """Pang et al., Algorithm 1."""

    def __init__(self, policy: MemoryPolicy) -> None:
        self.controller = MemoryController(policy)

    @override
    def limit(self, waiting: int, running: int, now_s: float) -> int:
        """What fits with the probability that is requested."""
        return self.controller.update(waiting, running, now_s)

    @override
    def finished(self, tokens: int) -> None:
        self.controller.observe(tokens)


class ByPaper(Limit):
    """Pang et al., Algorithm 2."""

    def __init__(self, target_s: float, max_requests: int) -> None:
        """`target_s`: what a step may take, D_SLA. The search begins in the middle, as the paper's does."""
        self.controller = PaperController(PaperPolicy(1, max_requests, max(1, max_requests // 2)), target_s)

    @override
    def limit(self, waiting: int, running: int, now_s: float) -> int:
        del waiting, running, now_s
        return self.controller.size

    @override
    def stepped(self, running: int, duration_s: float) -> None:
        """The step's time is learnt; those that run cannot be put back, the paper's N^d."""
        self.controller.observe(running, duration_s, running)


class Least(Limit):
    """The smallest of several limits: min(b_mem, b_SLA)."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits

    @override
    def limit(self, waiting: int, running: int, now_s: float) -> int:
        return min(limit.limit(waiting, running, now_s) for limit in self._limits)

    @override
    def stepped(self, running: int, duration_s: float) -> None:
        for limit in self._limits:
            limit.stepped(running, duration_s)

    @override
    def finished(self, tokens: int) -> None:
        for limit in self._limits:
            limit.finished(tokens)
