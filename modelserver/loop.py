"""The engine loop: build the engine, run step after step on its own thread, and build it again after it broke."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from enum import StrEnum
from threading import Thread
from typing import Generic, Protocol, TypeVar

from modelserver.engines.engine import EngineFacts
from modelserver.errors import DeviceLost, EngineBroken
from modelserver.watch import Phase, PhaseWatchdog

_log = logging.getLogger(__name__)

_FAILED_STEPS = 8
"""Failed steps in a row after which an engine leaves service: one that fails fast would attract the most work."""


class EngineState(StrEnum):
    """The state of the engine."""

    SERVING = "serving"
    REBUILDING = "rebuilding"
    STOPPED = "stopped"
    FAILED = "failed"


class Closable(Protocol):
    """Every engine."""

    @property
    def facts(self) -> EngineFacts: ...

    def close(self) -> None: ...


E = TypeVar("E", bound=Closable)
C_contra = TypeVar("C_contra", bound=Closable, contravariant=True)
StateEvent = Callable[[EngineState, Exception | None], None]
"""Called on the engine's thread at each change of state, with the error of a failure."""


class Steps(Protocol[C_contra]):
    """The work of one task: where the next step comes from, and where its results go. Called on the engine's thread."""

    @property
    def failures(self) -> int:
        """Consecutive failed steps."""
        ...

    def open(self, engine: C_contra) -> None: ...

    def wait(self, engine: C_contra) -> bool:
        """Wait until there is a step to run. False: new work is refused, and all accepted work is done."""
        ...

    def execute(self, engine: C_contra) -> None: ...

    def refuse(self, reason: str) -> None:
        """Refuse waiting work, and new work until `open`."""
        ...


class EngineLoop(Generic[E]):
    """A thread that builds one engine and runs the steps of one task on it."""

    def __init__(
        self,
        build: Callable[[], E],
        steps: Steps[E],
        on_state: StateEvent,
        watch: PhaseWatchdog,
    ) -> None:
        """`build` makes the engine, on the engine's thread, at the start and, on a CPU, again after it broke."""
        self._build = build
        self._steps = steps
        self._on_state = on_state
        self._watch = watch
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine = self._build()
            rebuilt = False
            while not self._execute_steps(engine, rebuilt=rebuilt):
                self._steps.refuse("the engine is being rebuilt")
                self._close(engine)
                del engine
                gc.unfreeze()  # the loaded model was frozen, and its parts refer to each other
                gc.collect()
                engine, rebuilt = self._build(), True
            self._close(engine)
        except Exception as error:  # noqa: BLE001 - after any error the process must end
            self._steps.refuse("the engine has failed")
            self._on_state(EngineState.FAILED, error)
        else:
            self._on_state(EngineState.STOPPED, None)

    def _close(self, engine: E) -> None:
        with self._watch.phase(Phase.CLOSE):
            engine.close()

    def _execute_steps(self, engine: E, *, rebuilt: bool) -> bool:
        """Execute steps until all work is done; False if the engine broke and may be built again.

        Raises EngineBroken if only a new process helps: on a GPU, whose memory the old engine still holds, and if an
        engine that was built again breaks before its first good step.
        """
        good_steps = 0
        self._steps.open(engine)
        self._on_state(EngineState.SERVING, None)
        try:
            while self._steps.wait(engine):
                self._execute(engine)
                good_steps += self._steps.failures == 0
        except EngineBroken as error:
            if isinstance(error, DeviceLost) or not engine.facts.on_cpu or (rebuilt and not good_steps):
                raise
            _log.exception("the engine broke")
            self._on_state(EngineState.REBUILDING, error)
            return False
        return True

    def _execute(self, engine: E) -> None:
        with self._watch.phase(Phase.STEP):
            self._steps.execute(engine)
        if self._steps.failures >= _FAILED_STEPS:
            raise EngineBroken(f"{_FAILED_STEPS} steps in a row have failed")
