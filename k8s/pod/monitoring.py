"""Answer scrapes of metrics and the probes of Kubernetes, over HTTP on a thread: also while the event loop is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from typing_extensions import override

from k8s.pod.http.connections import Connections
from k8s.pod.http.exchange import TEXT, Exchange, HttpError, Service
from k8s.pod.http.server import HttpServer

_MOST_CONNECTIONS = 64 + 256
"""Open at a time: scrapes and probes, which end at once, and the live page's viewers."""
_GRACE_S = 0.2

T = TypeVar("T")

Check = Callable[[], str | None]
"""Returns why the check fails, or None. Called on another thread than the event loop's."""
_BEAT_S = 1.0  # time-outs of the loop are 10 s and more


@dataclass(slots=True)
class Health:
    """The named checks of `/livez` and `/readyz`; without a check a process is alive, but not ready."""

    live: dict[str, Check] = field(default_factory=dict[str, Check])
    ready: dict[str, Check] = field(default_factory=dict[str, Check])

    def liveness(self) -> tuple[bool, str]:
        """Whether the process is alive, and a line per check."""
        return _result(self.live, "ok")

    def readiness(self) -> tuple[bool, str]:
        if not self.ready:
            return False, "starting\n"
        return _result(self.ready, "ready")


class Heartbeat:
    """Shows other threads when the event loop last ran, by a timer of one second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._beat()

    def stop(self) -> None:
        self._timer.cancel()

    def within(self, most_s: float) -> Check:
        """The check that the loop ran in the last `most_s` seconds."""

        def check() -> str | None:
            silent_s = self._clock() - self._beaten_s
            return None if silent_s <= most_s else f"has not run for {silent_s:.0f} s"

        return check

    def _beat(self) -> None:
        self._beaten_s = self._clock()
        self._timer = self._loop.call_later(_BEAT_S, self._beat)


def _result(checks: Mapping[str, Check], word: str) -> tuple[bool, str]:
    lines: list[str] = []
    for name, check in tuple(checks.items()):  # the event loop may add one during this loop
        reason = check()
        lines.append(f"[{'-' if reason else '+'}]{name} {reason or 'ok'}\n")
    failed = any(line.startswith("[-]") for line in lines)
    return not failed, "".join(lines) + ("failed" if failed else word) + "\n"


class Pages(Protocol):
    """Pages at further paths: a Protocol, because only the aggregator has some, which this package does not know."""

    def answer(self, exchange: Exchange) -> bool:
        """Answer to GET; False for a path that is not known. Called on the monitoring thread's own event loop."""
        ...


class MonitoringServer(Service):
    """`/metrics` (Prometheus and OpenMetrics text), `/livez` and `/readyz`; with `show`, further pages."""

    def __init__(self, bind: str, registry: CollectorRegistry, health: Health) -> None:
        """Bind `host:port`; port 0 picks a free one. Raises StartError when the address cannot be bound."""
        self._registry = registry
        self._health = health
        self._pages: Pages | None = None
        self._loop = asyncio.new_event_loop()
        self._server = HttpServer(self, Connections(_MOST_CONNECTIONS))
        self._thread = Thread(target=self._loop.run_forever, name="monitoring", daemon=True)
        self._thread.start()
        try:
            self.address = self._wait_for(self._server.start("telemetry.metrics_bind", bind))
        except BaseException:
            self._end()
            raise

    def show(self, pages: Pages) -> None:
        self._pages = pages

    def close(self) -> None:
        self._wait_for(self._stop())
        self._end()

    async def _stop(self) -> None:
        await self._server.stop(_GRACE_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @override
    def open(self, exchange: Exchange) -> None:
        exchange.keeps_alive = False
        if exchange.method not in {"GET", "HEAD"}:
            raise HttpError(405, "method_not_allowed", "there is only GET", allow="GET, HEAD")
        exchange.serve = self._serve

    def _serve(self, exchange: Exchange) -> None:
        match exchange.path:
            case "/metrics":
                exchange.start(self._scrape(exchange))
            case "/livez":
                _answer_check(exchange, *self._health.liveness())
            case "/readyz":
                _answer_check(exchange, *self._health.readiness())
            case _:
                if self._pages is None or not self._pages.answer(exchange):
                    raise HttpError(404, "not_found", "there are /metrics, /livez and /readyz")

    async def _scrape(self, exchange: Exchange) -> None:
        """On a further thread: gauges are read on the event loop of the process, which may be busy."""
        encoder, content_type = choose_encoder(exchange.header(b"accept"))
        body = await asyncio.to_thread(encoder, self._registry)
        exchange.answer(200, body, {"content-type": content_type})


def _answer_check(exchange: Exchange, holds: bool, lines: str) -> None:  # noqa: FBT001 - as the check returns it
    exchange.answer(200 if holds else 503, lines.encode(), {"content-type": TEXT})
