"""Serve with the direct engine where it can be made and agrees with vLLM's own way, which serves otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from modelserver.engines.choice import Choice
from modelserver.engines.engine import CountLaunch, Engine
from modelserver.wings.direct.agreement import compare

if TYPE_CHECKING:
    from modelserver.engines.core import CoreEngine
    from modelserver.settings import EngineSettings

_log = logging.getLogger(__name__)


def choose_direct(core: CoreEngine, settings: EngineSettings, count: CountLaunch) -> Choice:
    """A direct engine over the weights of this one, with graphs where they are set, or this one and why."""
    from modelserver.wings.direct.engine import DirectEngine  # noqa: PLC0415 - torch and vLLM are loaded by now
    from modelserver.wings.direct.graphs.device import Cuda  # noqa: PLC0415
    from modelserver.wings.direct.graphs.engine import with_graphs  # noqa: PLC0415

    choice = choose(core, lambda: DirectEngine(core))
    direct = choice.engine
    if settings.graphs == "off" or not isinstance(direct, DirectEngine) or direct.device.type != "cuda":
        return choice
    return replace(choice, engine=with_graphs(direct, Cuda(direct.device), count))


def choose(core: Engine, make_direct: Callable[[], Engine]) -> Choice:
    """The direct engine where it can be made and agrees with the core engine, else the core engine and why."""
    try:
        direct = make_direct()
        agreement = compare(direct, core)
    except Exception as error:  # noqa: BLE001 - private interfaces fail in any way; the general engine remains
        return _fallback(core, f"the direct way fails: {type(error).__name__}: {error}")
    if not agreement.agrees:
        apart = f"{agreement.difference:.2g} where {agreement.tolerance:.2g} is allowed"
        return _fallback(core, f"the direct way disagrees with the general one by {apart}")
    _log.info("the direct way agreed", extra={"difference": agreement.difference, "tolerance": agreement.tolerance})
    return Choice(direct)


def _fallback(core: Engine, reason: str) -> Choice:
    _log.warning("fell back to the general engine", extra={"reason": reason})
    core.recover()
    return Choice(core, reason)
