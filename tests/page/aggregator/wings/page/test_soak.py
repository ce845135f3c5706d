"""The page open for half an hour under load, while everything is restarted ten times: memory flat, moving, right."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from loadtest.kit.prometheus import totals
from tests.page.aggregator.wings.page.conftest import Browser, Stack

DURATION_S, RESTARTS = 1800.0, 10
GROWTH = 1.2
LIVE = "return find('connection').textContent === 'live' && state.event.lanes.every((lane) => lane.state !== 'gone')"
SHOWN = "return window.shown.reduce((sum, batch) => sum + batch[6], 0)"


def memory(browser: Browser) -> dict[str, float]:
    """MB of the page's objects after a collection, MB of the browser's processes, and the page's nodes."""
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    browser.driver.execute_cdp_cmd("Performance.enable", {})
    metrics = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    found = {each["name"]: each["value"] for each in metrics}
    assert browser.driver.service.process is not None
    processes = psutil.Process(browser.driver.service.process.pid).children(recursive=True)
    resident = sum(process.memory_info().rss for process in processes)
    return {"objects": found["JSHeapUsedSize"] / 1e6, "processes": resident / 1e6, "nodes": found["Nodes"]}


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(DURATION_S + 900)
def test_half_an_hour_with_ten_restarts_of_everything(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    started_s = time.monotonic()
    readings: list[dict[str, float]] = []
    for restart in range(RESTARTS):
        while time.monotonic() - started_s < (restart + 0.5) * DURATION_S / RESTARTS:
            time.sleep(5)
            number = browser.run("return state.event.number")
            browser.until(f"return state.event.number > {number}")
        readings.append(memory(browser) | {"minute": (time.monotonic() - started_s) / 60})
        print(json.dumps(readings[-1]), flush=True)  # noqa: T201 - of half an hour one wants to see the way
        stack.aggregator.stop()
        for part in (*stack.servers, stack.mixed, stack.kafka):
            part.stop()
        for part in (stack.kafka, *stack.servers, stack.mixed, stack.aggregator):
            part.start()
        browser.until(LIVE, within_s=60)
    while time.monotonic() - started_s < DURATION_S:
        time.sleep(5)
    readings.append(memory(browser) | {"minute": (time.monotonic() - started_s) / 60})
    print(json.dumps(readings[-1]), flush=True)  # noqa: T201
    for name in ("objects", "processes", "nodes"):
        first, last = readings[1][name], readings[-1][name]
        assert last <= GROWTH * first, f"{name} grew from {first} to {last}: {readings}"

    stack.pause()
    browser.until("return state.event.lanes.every((lane) => !lane.tokens_out)")
    browser.run("""
        window.shown = [];
        const before = hear;
        source.onmessage = (message) => {
            const event = JSON.parse(message.data);
            window.shown.push(...event.batches);
            before(event);
        };
    """)
    queries = totals(stack.aggregator.metrics_address)["tokenbatch_batch_queries_sum"]
    stack.go_on()
    time.sleep(10)
    stack.pause()
    browser.until("return state.event.lanes.every((lane) => !lane.tokens_out && !lane.sequences)")
    sent = totals(stack.aggregator.metrics_address)["tokenbatch_batch_queries_sum"] - queries
    assert sent > 100
    browser.until(f"{SHOWN} >= {sent}")
    assert browser.run(SHOWN) == sent
    stack.go_on()
