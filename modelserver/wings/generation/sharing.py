"""A place in the steps of generation for other work; the wing `both` has embeddings there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modelserver.errors import ModelServerError
from modelserver.wings.generation.generator import EngineLoad, Generator, NewTokens, StepLoad


class SharedSteps:
    """The other work in the steps of one engine: by default none. Called on the engine's thread."""

    failures = 0
    """Consecutive failed steps of this work."""

    @property
    def has_work(self) -> bool:
        """Whether some of it is in the engine or waits."""
        return False

    @property
    def isolated(self) -> bool:
        """Whether one piece of it has the steps to itself."""
        return False

    @property
    def running(self) -> bool:
        """Whether some of it is in the engine."""
        return False

    @property
    def room_tokens(self) -> int | None:
        """Tokens of it that would have fitted the last step; None: there is no such work."""
        return None

    def open(self, engine: Generator, wake: Callable[[], None]) -> None:
        """Accept work from now on; `wake` is called on any thread when some comes."""

    def begin_step(self, engine: Generator, now_s: float, idle_s: float) -> None:
        """Forget what nobody waits for; `idle_s`: idle time before the step."""

    def step_tokens(self, engine: Generator, load: EngineLoad, wanted: int) -> int:
        """The size of a step of `load`, for which `wanted` tokens keep the time between two tokens."""
        del engine, load
        return wanted

    def compose(self, engine: Generator, load: EngineLoad, step_tokens: int, sequences: int) -> None:
        """Let work enter the engine, and limit its next step's tokens and generations."""
        del load
        engine.limit(step_tokens, sequences)

    def deliver(self, new: Sequence[NewTokens], load: StepLoad, duration_s: float) -> None:
        """Hand on what the step finished of this work."""

    def fail_isolated(self, engine: Generator, error: Exception, duration_s: float) -> None:
        """Report the failure of the isolated piece, for which generations waited. Raises EngineBroken."""

    def fail(self, error: Exception, broken: ModelServerError | None, now_s: float) -> None:
        """A step failed: report or repeat this work. If the engine is `broken`, it runs elsewhere."""

    def refuse(self, reason: str) -> None:
        """Refuse all of it."""
