"""An aggregator whose event loop is stuck is not ready soon, and not alive later: its health answers from a thread."""

from __future__ import annotations

import asyncio
import time

import pytest

from aggregator import aggregator as composition
from aggregator.aggregator import Aggregator
from aggregator.settings import AggregatorSettings
from loadtest.stack.ports import free_ports
from tests.integration.aggregator.scrape import page

pytestmark = pytest.mark.slow

UNREADY_S, WEDGED_S, STUCK_S = 2.0, 6.0, 8.0


async def test_a_wedged_event_loop_is_unready_then_dead_until_it_comes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_UNREADY_S", UNREADY_S)
    monkeypatch.setattr(composition, "_WEDGED_S", WEDGED_S)
    (port,) = free_ports(1)
    health = f"localhost:{port}"
    settings = {
        "kafka": {"enabled": False},
        "grpc": {"bind": "127.0.0.1:0"},
        "demand": {"enabled": False},
        "models": [{"name": "m", "servers": ["localhost:1"]}],
        "telemetry": {"metrics_bind": f"127.0.0.1:{port}"},
    }
    aggregator, stop = Aggregator(AggregatorSettings.model_validate(settings)), asyncio.Event()
    running = asyncio.create_task(aggregator.run(stop))
    await asyncio.sleep(0.5)

    def watch() -> list[tuple[str, int, bool]]:
        """What is shown: the path, its status, and whether the event loop is well."""
        shown: list[tuple[str, int, bool]] = []
        for path, after_s in (("/livez", 0.3), ("/readyz", 2.5), ("/livez", 0.0), ("/livez", 4.0)):
            time.sleep(after_s)
            status, text = page(health, path)
            shown.append((path, status, "[+]loop ok" in text))
        return shown

    watching = asyncio.create_task(asyncio.to_thread(watch))
    await asyncio.sleep(0.05)
    time.sleep(STUCK_S)  # noqa: ASYNC251 - the fault itself
    assert await watching == [
        ("/livez", 200, True),
        ("/readyz", 503, False),
        ("/livez", 200, True),
        ("/livez", 503, False),
    ]
    await asyncio.sleep(0.1)
    assert await asyncio.to_thread(page, health, "/livez") == (200, "[+]loop ok\nok\n")
    _, text = await asyncio.to_thread(page, health, "/readyz")
    assert "[+]loop ok" in text
    stop.set()
    await running
