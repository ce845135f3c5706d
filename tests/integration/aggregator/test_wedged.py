"""An aggregator whose event loop is stuck is not ready soon, and not alive later: its health answers from a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from aggregator import app as composition
from aggregator.app import Aggregator
from aggregator.settings.aggregator import AggregatorSettings
from loadtest.stack.ports import free_ports
from tests.support.scrape import page

pytestmark = pytest.mark.slow

UNREADY_S, WEDGED_S, LIMIT_S = 2.0, 6.0, 60.0
WELL, UNREADY, DEAD = (200, True), (200, False), (503, False)


async def test_a_wedged_event_loop_is_unready_then_dead_until_it_comes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_UNREADY_S", UNREADY_S)
    monkeypatch.setattr(composition, "_WEDGED_S", WEDGED_S)
    (port,) = free_ports(1)
    health = f"localhost:{port}"
    settings = {
        "kafka": {"enabled": False},
        "grpc": {"bind": "127.0.0.1:0"},
        "models": [{"name": "m", "servers": ["localhost:1"]}],
        "telemetry": {"metrics_bind": f"127.0.0.1:{port}"},
    }
    aggregator, stop = Aggregator(AggregatorSettings.model_validate(settings)), asyncio.Event()
    running = asyncio.create_task(aggregator.run(stop))
    await until_shown(health, WELL)
    seen_dead = threading.Event()

    def watch() -> list[tuple[int, bool]]:
        """What is shown, whenever it changes, until it is DEAD."""
        shown = [WELL]
        deadline_s = time.monotonic() + LIMIT_S
        while shown[-1] != DEAD and time.monotonic() < deadline_s:
            if (now := state(health)) != shown[-1]:
                shown.append(now)
            time.sleep(0.1)
        seen_dead.set()
        return shown

    watching = asyncio.get_running_loop().run_in_executor(None, watch)
    seen_dead.wait(LIMIT_S)  # the fault itself
    assert await watching == [WELL, UNREADY, DEAD]
    await until_shown(health, WELL)
    assert await asyncio.to_thread(page, health, "/livez") == (200, "[+]loop ok\nok\n")
    stop.set()
    await running


def state(address: str) -> tuple[int, bool]:
    """What is shown: the status of `/livez`, and whether `/readyz` finds the event loop well."""
    return page(address, "/livez")[0], "[+]loop ok" in page(address, "/readyz")[1]


async def until_shown(address: str, wanted: tuple[int, bool]) -> None:
    """Wait for it, also while nobody listens yet."""
    shown = None
    async with asyncio.timeout(LIMIT_S):
        while shown != wanted:
            await asyncio.sleep(0.05)
            with suppress(OSError):
                shown = await asyncio.to_thread(state, address)
