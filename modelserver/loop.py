"""The engine loop: build the engine, run step after step on its own thread, and build it again after it broke."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum
from threading import Thread
from typing import Generic, Protocol, TypeVar

from modelserver.errors import EngineBroken

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """The state of the engine."""

    SERVING = "serving"
    REBUILDING = "rebuilding"
    STOPPED = "stopped"
    FAILED = "failed"


class Closable(Protocol):
    """What every engine is."""

    def close(self) -> None:
        """Free what it holds."""
        ...


E = TypeVar("E", bound=Closable)
C_contra = TypeVar("C_contra", bound=Closable, contravariant=True)
StateEvent = Callable[[EngineState, Exception | None], None]
"""Called on the engine's thread at each change of state, with the error of a failure."""


class Steps(Protocol[C_contra]):
    """The work of one task: where the next step comes from, and who gets its results. Called on the engine's thread."""

    def open(self, engine: C_contra) -> None:
        """Accept work from now on."""
        ...

    def wait(self, engine: C_contra) -> bool:
        """Wait until there is a step to run. False: no more work is accepted, and all of it is done."""
        ...

    def run(self, engine: C_contra) -> None:
        """Run the step and deliver its results. Raises EngineBroken."""
        ...

    def refuse(self, reason: str) -> None:
        """Accept no more work for now, and refuse what waits."""
        ...


class EngineLoop(Generic[E]):
    """A thread that builds one engine and runs the steps of one task on it."""

    def __init__(
        self,
        build: Callable[[], E],
        steps: Steps[E],
        on_state: StateEvent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`build` makes the engine, on the engine's thread, at the start and again after it broke."""
        self._build = build
        self._steps = steps
        self._on_state = on_state
        self._clock = clock
        self._running_since_s: float | None = None
        self._thread = Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def running_s(self) -> float:
        """How long the running step has taken so far; 0 if none runs."""
        since_s = self._running_since_s
        return 0.0 if since_s is None else self._clock() - since_s

    def _loop(self) -> None:
        try:
            engine = self._build()
            while not self._serve(engine):
                self._steps.refuse("the engine is being rebuilt")
                engine.close()
                engine = self._build()
            engine.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the process must know of it and end
            self._steps.refuse("the engine has failed")
            self._on_state(EngineState.FAILED, error)
        else:
            self._on_state(EngineState.STOPPED, None)

    def _serve(self, engine: E) -> bool:
        """Run steps until all work is done; False if the engine broke."""
        self._steps.open(engine)
        self._on_state(EngineState.SERVING, None)
        try:
            while self._steps.wait(engine):
                self._run(engine)
        except EngineBroken as error:
            _log.exception("the engine broke")
            self._on_state(EngineState.REBUILDING, error)
            return False
        return True

    def _run(self, engine: E) -> None:
        self._running_since_s = self._clock()
        try:
            self._steps.run(engine)
        finally:
            self._running_since_s = None
