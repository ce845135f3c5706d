"""Measure a model's saturation profile and write it as files, without serving."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path

from modelserver.engines.choice import build
from modelserver.engines.engine import Engine
from modelserver.engines.warm_up import warm_up
from modelserver.loop import EngineLoop, EngineLoopEvents, EngineState
from modelserver.model_files import ModelFiles
from modelserver.profile import store
from modelserver.profile.measure import Profile, measure
from modelserver.profile.throughput import with_backlog
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import describe
from modelserver.settings import ModelServerSettings
from modelserver.startup import profile_owner, queue_bounds, sweep_plan

_log = logging.getLogger(__name__)

_CLOSE_S = 30.0


def write_profile(settings: ModelServerSettings, files: ModelFiles, out: Path) -> None:
    """Write `profile.json` and `profile.csv` into the folder `out`. Raises CannotStart."""
    profile = asyncio.run(_measured(settings, files))
    out.mkdir(parents=True, exist_ok=True)
    store.save(profile, out / "profile.json")
    store.save_csv(profile, out / "profile.csv")
    _log.info("wrote the profile", extra={"folder": str(out)})


async def _measured(settings: ModelServerSettings, files: ModelFiles) -> Profile:
    """On an engine of its own: its steps on its thread, then batches through the service."""
    loop = asyncio.get_running_loop()
    serving: asyncio.Future[tuple[Engine, Profile]] = loop.create_future()
    made: list[tuple[Engine, Profile]] = []

    def start() -> Engine:
        engine = build(settings, files).engine
        warm_up(engine)
        profile = measure(engine, profile_owner(settings, engine.facts, files), sweep_plan(settings, engine.facts))
        made.append((engine, profile))
        return engine

    def show(state: EngineState, error: Exception | None) -> None:
        if serving.done():
            return
        if error is not None:
            serving.set_exception(error)
        elif state is EngineState.SERVING:
            serving.set_result(made[-1])

    queue = StepQueue(time.monotonic)

    def post(state: EngineState, error: Exception | None) -> None:
        loop.call_soon_threadsafe(show, state, error)

    events = EngineLoopEvents(post, lambda _: None, lambda _: None)
    engine_loop = EngineLoop(start, queue, partial(queue_bounds, settings), events)
    engine_loop.start()
    engine, profile = await serving
    described = describe(settings.served_name, engine.facts, files, profile, "")
    profile = await with_backlog(profile, queue, described)
    queue.close()
    await asyncio.to_thread(engine_loop.join, _CLOSE_S)
    return profile
