"""What the stations of a request do: the share of time that each works, or is held up by the next one.

    receive → admit → queue → model servers → complete

Work on the event loop is seen by looking at its stack from another thread, so that no code on the path counts anything.
Such samples come when the loop lets other threads run, often at its idle moments: they divide the time that the loop
used the CPU, and the clock of its thread says how long that is.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from threading import get_ident
from types import FrameType

from aggregator.admission.models import Models
from aggregator.scheduler.generating_replica import GeneratingReplica

_MEMORY = 0.95
"""The weight of earlier samples of the stack, at each new one."""
_SHORT_S = 0.05
"""A shorter time says nothing about how busy a thread is."""


class Station(StrEnum):
    """In the order of the data."""

    RECEIVE = "receive"
    ADMIT = "admit"
    QUEUE = "queue"
    MODEL_SERVERS = "model servers"
    COMPLETE = "complete"


_COMPLETING = ("outcomes", "producer", "deltas", "commits", "dead_letters", "committed_offset")
PLACES = (
    *((f"/aggregator/sources/kafka/{name}.py", Station.COMPLETE) for name in _COMPLETING),
    ("/aggregator/sources/redis/source.py", Station.COMPLETE),
    ("/aggregator/sources/response.py", Station.COMPLETE),
    ("/aggregator/pipeline/completion.py", Station.COMPLETE),
    ("/aggregator/pipeline/generation.py", Station.COMPLETE),
    ("/aggregator/request/", Station.COMPLETE),
    ("/aiokafka/producer/", Station.COMPLETE),
    ("/aggregator/sources/", Station.RECEIVE),
    ("/aiokafka/consumer/", Station.RECEIVE),
    ("/grpc/", Station.RECEIVE),
    ("/aiohttp/", Station.RECEIVE),
    ("/redis/", Station.RECEIVE),
    ("/aggregator/admission/", Station.ADMIT),
    ("/aggregator/tokenizers/", Station.ADMIT),
    ("/aggregator/scheduler/", Station.QUEUE),
    ("/aggregator/replicas/", Station.QUEUE),
    ("/aggregator/pipeline/", Station.QUEUE),
)
"""The file of a frame decides, from the innermost frame outwards; the first place that is part of its path."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the last half second, 0 to 1; what is left of 1 the station was idle."""

    working: float
    held_up: float


class Stations:
    """Made on the event loop; `sample` is called from another thread, the rest on the loop."""

    def __init__(self, models: Models, paused: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`paused`: whether a source receives nothing because the next stations are full."""
        self._models = models
        self._paused = paused
        self._clock = clock
        self._loop_thread = get_ident()
        self._known: dict[str, Station | None] = {}
        self._seen = dict.fromkeys(Station, 0.0)
        self._held = dict.fromkeys(Station, 0)
        self._serving = 0.0
        self._looks = 0
        self._read_s, self._cpu_s = clock(), time.thread_time()

    def sample(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - CPython has no other way to see it
        while frame is not None:
            station = self._station(frame)
            if station is not None:
                for each in Station:
                    self._seen[each] *= _MEMORY
                self._seen[station] += 1.0
                return
            frame = frame.f_back

    def look(self) -> None:
        now_s = self._clock()
        self._looks += 1
        models = list(self._models)
        before: Counter[str] = Counter()
        generating: set[str] = set()
        stuck = False
        servers: dict[str, bool] = {}
        for model in models:
            for model_revision in model.revisions.values():
                dispatcher = model_revision.dispatcher
                replicas = dispatcher.replicas
                tokens = dispatcher.queue.tokens
                before[model.name] += tokens
                stuck = stuck or (tokens > 0 and replicas.due_s(now_s) > now_s)
                for name, replica in replicas.items():
                    before[model.name] += replica.tokens_out
                    busy = replica.batches_out > 0
                    if isinstance(replica, GeneratingReplica) and replica.sequences:
                        generating.add(model.name)  # sequences hold tokens until they end, and are no batch
                        busy = True
                    servers[name] = servers.get(name, False) or busy
        held = {each.name: each.admission.total for each in self._models.configured if each.name not in generating}
        left = sum(held.values()) - sum(before[name] for name in held)
        self._held[Station.RECEIVE] += self._paused()
        self._held[Station.ADMIT] += any(len(model.pending) or model.full() for model in models)
        self._held[Station.QUEUE] += stuck
        self._held[Station.COMPLETE] += left > sum(before[name] for name in held)
        self._serving += sum(servers.values()) / len(servers) if servers else 0.0

    def read(self) -> tuple[float, Mapping[Station, Shares]]:
        """The share of time that the event loop used the CPU since the last call, and those of the stations."""
        now_s, cpu_s = self._clock(), time.thread_time()
        elapsed_s = now_s - self._read_s
        busy = min(1.0, (cpu_s - self._cpu_s) / elapsed_s) if elapsed_s > _SHORT_S else 0.0
        self._read_s, self._cpu_s = now_s, cpu_s
        looks, seen = max(1, self._looks), sum(self._seen.values()) or inf
        shares: dict[Station, Shares] = {}
        for station in Station:
            working = busy * self._seen[station] / seen
            if station is Station.MODEL_SERVERS:
                working = self._serving / looks
            shares[station] = Shares(working, min(self._held[station] / looks, 1.0 - working))
        self._looks, self._serving = 0, 0.0
        self._held = dict.fromkeys(Station, 0)
        return busy, shares

    def _station(self, frame: FrameType) -> Station | None:
        path = frame.f_code.co_filename
        if path not in self._known:
            self._known[path] = next((station for part, station in PLACES if part in path), None)
        return self._known[path]
