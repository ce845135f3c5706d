"""The model server's own rules and the paper's, as rules for an engine that is driven here."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from loadtest.lab.generation.live.drive import Rule
from loadtest.simulate.paper_sla import PaperController, PaperPolicy
from modelserver.engines.engine import StepLoad
from modelserver.scheduler.step_limits import MemoryForm, MemoryLimit, StepCost, StepTokens


class ByMemory(Rule):
    """generation.memory_limit of the model server: Algorithm 1 of Pang et al., in either form."""

    def __init__(self, form: MemoryForm, capacity_tokens: int, longest_tokens: int, step_tokens: int) -> None:
        self._limit = MemoryLimit(form, capacity_tokens, longest_tokens)
        self._step_tokens = step_tokens

    @override
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]:
        """As many sequences as seldom overflow the cache."""
        del decoding, waiting
        return self._step_tokens, self._limit.sequences(running)

    @override
    def finished(self, prompt_tokens: int, new_tokens: int) -> None:
        self._limit.observe(prompt_tokens, new_tokens)


class BySla(Rule):
    """generation.time_per_output_token_s of the model server."""

    def __init__(self, cost: StepCost, target_s: float, step_tokens: int, sequences: int) -> None:
        self._rule = StepTokens(cost, target_s, step_tokens, sequences)

    @override
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]:
        """Sequences that fit the target, and as many prompt tokens as it leaves."""
        del waiting
        return self._rule.tokens(decoding), max(running, self._rule.sequences())

    @override
    def stepped(self, load: StepLoad, took_s: float) -> None:
        self._rule.observe(load, took_s)


class ByPaper(Rule):
    """Algorithm 2 of Pang et al.: a search for the number of sequences whose steps take as long as they may."""

    def __init__(self, target_s: float, step_tokens: int, sequences: int) -> None:
        self._controller = PaperController(PaperPolicy(1, sequences, max(1, sequences // 2)), target_s)
        self._step_tokens = step_tokens

    @override
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]:
        """Where the search stands."""
        del decoding, waiting
        return self._step_tokens, max(running, self._controller.size)

    @override
    def stepped(self, load: StepLoad, took_s: float) -> None:
        """Of steps that decode the time is learnt."""
        if load.decoding:
            self._controller.observe(load.decoding, took_s, load.decoding)


class Least(Rule):
    """The narrowest of several: min(b_mem, b_SLA)."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    @override
    def bounds(self, decoding: int, running: int, waiting: int) -> tuple[int, int]:
        each = [rule.bounds(decoding, running, waiting) for rule in self._rules]
        return min(tokens for tokens, _ in each), min(sequences for _, sequences in each)

    @override
    def stepped(self, load: StepLoad, took_s: float) -> None:
        for rule in self._rules:
            rule.stepped(load, took_s)

    @override
    def finished(self, prompt_tokens: int, new_tokens: int) -> None:
        for rule in self._rules:
            rule.finished(prompt_tokens, new_tokens)
