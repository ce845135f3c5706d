"""The interface of an extension: routes over HTTP, and a source that computes what they took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aggregator.admission.ledger import Intake
from aggregator.request.request import Request, Source
from aggregator.settings.aggregator import AggregatorSettings, KafkaSettings
from aggregator.sources.brokers import Trial
from aggregator.sources.calls.calls import Served
from aggregator.sources.http.listener import HttpSource


@dataclass(frozen=True, slots=True)
class ExtensionParts:
    """The parts that an extension is made of.

    `http`: None if that port is closed. `intake`: the part of the ledger of sources that pause. `forget`: drops waiting
    requests, which others compute.
    """

    http: HttpSource | None
    served: Served
    intake: Intake
    forget: Callable[[Callable[[Request], bool]], None]


@dataclass(frozen=True, slots=True)
class Extension:
    """Functions that return None where the settings do not enable the extension.

    `open` mounts the routes and makes the source. Raises StartError. `kafka`: the topics that it both reads and writes,
    and its group.
    """

    open: Callable[[AggregatorSettings, ExtensionParts], Source | None]
    check: Trial
    kafka: Callable[[AggregatorSettings], KafkaSettings | None]
