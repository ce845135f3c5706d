"""The page in a browser: it loads, moves under load, shows a lost server, survives a restart, and anyone can use it."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.page.aggregator.wings.page.conftest import GENERATING, Browser, Stack

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BARS = "return [...state.bars.values()].flat().length"
LANE = """
const row = [...document.querySelectorAll(".lane")].find((row) => row.innerText.startsWith(arguments[0]));
return row && row.querySelector(".state").textContent"""
SEVERE = ("serious", "critical")


def is_state(address: str, state: str) -> str:
    """A script: whether the lane of this server shows this state."""
    return f"return (function() {{ {LANE} }})({address!r}) {state}"


def test_it_loads_without_an_error_and_asks_no_other_host(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until(f"return (function() {{ {BARS} }})() > 20")
    requested = browser.requested()
    assert stack.page in requested
    assert f"{stack.page}live" in requested
    assert all(address.startswith((stack.page, "data:")) for address in requested)
    assert not browser.console()


def test_a_batch_is_shown_within_a_second_of_its_end(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.run("""
        window.late = [];
        const before = hear;
        source.onmessage = (message) => {
            const event = JSON.parse(message.data);
            before(event);
            if (!event.history) for (const batch of event.batches) late.push(event.now - batch[2]);
        };
    """)
    browser.until("return late.length > 30")
    assert max(browser.run("return late")) < 1.0
    drawn = """
        const [name, lane] = [...lanes].find(([name]) => (state.bars.get(name) || []).length);
        drawLane(name, lane.canvas);
        const draw = lane.canvas.getContext("2d"), bar = state.bars.get(name).at(-1);
        const x = lane.canvas.width * (1 - (now() - bar.end + bar.duration / 2) / shownSpan());
        return draw.getImageData(x, 10, 1, 1).data[3] > 0;
    """
    assert browser.run(drawn)


def test_it_moves(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    first = int(browser.run("return document.documentElement.dataset.events"))
    browser.until(f"return document.documentElement.dataset.events > {first + 3}")
    pixels = "return [...lanes.values()].map((lane) => lane.canvas.toDataURL()).join()"
    before = browser.run(pixels)
    browser.until(f"return (function() {{ {pixels} }})() !== {before!r}")


def test_every_plot_has_its_values_as_a_table(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return state.points.length > 3 && plots.has('tokentimes')")
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
    browser.until(
        "return [...document.querySelectorAll('figure details table')].every((table) => table.rows.length > 1)"
    )
    assert browser.run("return document.querySelectorAll('figure details table').length") == 11
    assert browser.run("return find('strip').innerText.match(/tokens, /g).length") == 3
    titles = "return [...document.querySelectorAll('#batches th')].map((cell) => cell.textContent)"
    assert browser.run(titles)[:4] == ["server", "task", "ended", "step"]
    assert "embed.requests.v1" in browser.run("return find('partitions').innerText")
    assert stack.servers[0].model in browser.run("return find('scaling').innerText")


def test_the_steps_of_a_mixed_server_are_coloured_by_task(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    name = stack.mixed.address
    browser.until(f"return (state.steps.get({name!r}) || []).some((step) => step.decoding)")
    browser.until(f"return (state.steps.get({name!r}) || []).some((step) => step.prompt)")
    browser.until(f"return (state.steps.get({name!r}) || []).some((step) => step.embedding)")
    assert browser.run("return find('task-keys').hidden") is False
    colours = f"""
        const canvas = lanes.get({name!r}).canvas, found = new Set(), half = canvas.height / 2;
        const data = canvas.getContext("2d").getImageData(0, half + 2, canvas.width, half - 4).data;
        const hex = (part) => part.toString(16).padStart(2, "0");
        const text = (at) => "#" + [...data.slice(at, at + 3)].map(hex).join("");
        for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(text(at));
        return ["decode", "prompt", "embed"].filter((task) => found.has(colours[task]));
    """
    browser.until(f"return (function() {{ {colours} }})().length === 3")
    assert GENERATING in browser.run("return find('lanes').innerText")


def test_a_killed_model_server_turns_red_with_the_reason_and_recovers(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    server = stack.servers[1]
    browser.until(is_state(server.address, "!== 'not used'"))
    server.kill()
    browser.until(is_state(server.address, "=== 'not used'"), within_s=15)
    wrong = browser.until("return !find('wrong').hidden && find('problems').innerText")
    assert f"Model server {server.address}" in wrong
    red = "return getComputedStyle(document.querySelector('.lane.gone .state')).color"
    assert browser.run(red) == "rgb(179, 38, 30)"
    link = browser.driver.find_element(By.CSS_SELECTOR, "#problems a").get_attribute("href")
    assert link is not None
    anchor = link.rpartition("#")[2]
    server.start()
    browser.until(is_state(server.address, "!== 'not used'"))
    browser.until("return find('wrong').hidden")
    browser.driver.get(link)
    assert browser.run("return document.getElementById(arguments[0]).tagName", anchor) == "H2"


def test_it_connects_again_when_the_aggregator_restarts(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    stack.aggregator.stop()
    browser.until("return find('connection').textContent !== 'live'")
    stack.aggregator.start()
    browser.until("return find('connection').textContent === 'live'")
    browser.until("return state.event.number > 2 && state.event.number < 200")
    browser.until(f"return (function() {{ {BARS} }})() > 5")
    visible = "return [...state.bars.values()].flat().every((bar) => now() - bar.end < 60 && now() - bar.end > -2)"
    browser.until(visible)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_it_fits_and_axe_finds_no_serious_fault(
    width: int, scheme: str, stack: Stack, browser: Browser, axe: str
) -> None:
    browser.emulate(width, prefers_color_scheme=scheme)
    browser.open(stack.page)
    browser.until("return state.points.length > 3 && plots.size > 8")
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
    browser.until("return find('batches').rows.length > 1")
    assert browser.run("return document.scrollingElement.scrollWidth <= innerWidth")
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(246, 247, 249)" if scheme == "light" else "rgb(18, 21, 26)")
    assert_accessible(browser, axe)


def assert_accessible(browser: Browser, axe: str) -> None:
    browser.run(axe)
    found: dict[str, Any] = browser.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    serious = [each for each in found["violations"] if each["impact"] in SEVERE]
    assert not serious, [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious]
    assert len(found["passes"]) > 20


def test_the_keyboard_alone_pauses_and_chooses_a_batch_that_is_read_out(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until(f"return (function() {{ {BARS} }})() > 5")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    active = browser.driver.switch_to.active_element
    assert active.get_attribute("id") == "pause"
    active.send_keys(Keys.ENTER)
    assert active.get_attribute("aria-pressed") == "true"
    for _ in range(10):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        if browser.driver.switch_to.active_element.tag_name == "canvas":
            break
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    said = browser.driver.find_element(By.ID, "bar")
    assert said.get_attribute("role") == "status"
    assert "tokens" in said.text
    first = said.text
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert said.text
    paused = browser.run("return now()")
    assert browser.run("return now()") == paused
    browser.run("find('pause').click()")
    assert first.startswith("localhost:")


def test_with_reduced_motion_the_lanes_are_drawn_seldom(stack: Stack, browser: Browser) -> None:
    browser.emulate(prefers_reduced_motion="reduce")
    browser.open(stack.page)
    count = """
        window.draws = 0;
        const before = drawLane;
        drawLane = (...args) => { draws++; before(...args); };
        const first = state.event.number;
        window.passed = () => state.event.number - first;
    """
    browser.run(count)
    browser.until("return passed() >= 6")
    assert browser.run("return draws <= 3 * (passed() / 4 + 1)")


def test_a_tab_that_is_hidden_lets_go_of_its_connection_and_comes_back(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    hide = """
        Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
        return source.readyState;
    """
    assert browser.run(hide, True) == 2
    number = browser.run("return state.event.number")
    assert browser.run(hide, False) < 2
    browser.until(f"return state.event.number > {number}")
