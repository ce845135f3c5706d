"""What the composition root and `--check` call of a part that serves routes of its own behind the HTTP door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aggregator.admission.ledger import Intake
from aggregator.request.request import Request, Source
from aggregator.settings.aggregator import AggregatorSettings
from aggregator.sources.calls.calls import Served
from aggregator.sources.http.listener import HttpSource


@dataclass(frozen=True, slots=True)
class ExtensionParts:
    """What it is made of.

    `intake`: the part of the ledger of sources that pause. `forget`: drops waiting requests, which others compute.
    """

    http: HttpSource | None
    served: Served
    intake: Intake
    forget: Callable[[Callable[[Request], bool]], None]


@dataclass(frozen=True, slots=True)
class Extension:
    """Two functions, which return None where its settings do not enable it.

    `open` makes its source, and mounts its routes. `check` is given a time-out (s), and returns a name and what tries
    it: that returns warnings. Both raise StartError.
    """

    open: Callable[[AggregatorSettings, ExtensionParts], Source | None]
    check: Callable[[AggregatorSettings, float], tuple[str, Awaitable[Sequence[str]]] | None]
