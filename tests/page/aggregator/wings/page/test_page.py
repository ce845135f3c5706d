"""The page in a browser: it loads, moves under load, shows a lost server, survives a restart, and anyone can use it."""

from __future__ import annotations

import time
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
    drawn = "document.querySelectorAll('figure:not(.idle) details table')"
    browser.until(f"return [...{drawn}].every((table) => table.rows.length > 1)")
    assert browser.run("return document.querySelectorAll('figure details table').length") == 12
    titles = "return [...document.querySelectorAll('#batches th')].map((cell) => cell.textContent)"
    assert browser.run(titles)[:4] == ["server", "fill", "step", "tokens"]
    assert "embed.requests.v1/0" in browser.run("return find('partitions').innerText")
    assert stack.servers[0].model in browser.run("return find('scaling').innerText")


def test_a_page_that_hears_nothing_yet_shows_data(stack: Stack, browser: Browser) -> None:
    """As a screenshot of a page that has just been loaded does."""
    deaf = "window.EventSource = class { close() {} }"
    added = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": deaf})
    try:
        browser.open(stack.page)
        assert browser.run("return find('lanes').children.length") == 3
        assert browser.run("return find('number-rate').textContent") != "–"
        assert browser.run("return find('scaling').rows.length") == 3
        values = "[...document.querySelectorAll('#queued .u-value')].map((value) => value.textContent)"
        browser.until(f"return {values}.length === 4 && {values}.every((value) => /\\d/.test(value))")
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_four_numbers_stand_on_top_with_name_version_and_uptime(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return [...document.querySelectorAll('#numbers dt + dd')].every((dd) => /\\d/.test(dd.textContent))")
    titles = browser.run("return [...document.querySelectorAll('#numbers dt')].map((dt) => dt.textContent)")
    assert titles == ["questions/s", "p99", "fill of the batches", "waiting, tokens"]
    assert browser.run("return /^.+, version .+, up for \\d/.test(find('name').textContent)")
    tops = "return ['numbers', 'strip', 'lanes', 'plots'].map((id) => find(id).getBoundingClientRect().top)"
    assert browser.run(tops) == sorted(browser.run(tops))


def test_time_in_which_nobody_looked_is_left_out_of_the_plots(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return state.points.length > 3")
    browser.driver.get("about:blank")
    time.sleep(3)  # longer than the gap that is drawn as one
    browser.open(stack.page)
    browser.until("return state.event.number > 0 && state.points.length > 8")
    row = browser.run("return plots.get('tokens').plot.data[1]")
    gaps = [place for place, value in enumerate(row) if value is None and 0 < place < len(row) - 1]
    assert gaps, row
    xs = browser.run("return plots.get('tokens').plot.data[0]")
    assert any(xs[place + 1] - xs[place - 1] > 2 for place in gaps)


def shown(browser: Browser, change: str) -> None:
    """Show an event that a script has changed, and no other."""
    browser.run("if (!state.paused) pause()")
    browser.run(f"const event = structuredClone(state.event); {change}; show(event)")


def test_bars_are_shares_of_what_fits_with_the_mark_of_background_records(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    tokens = '[["queue", 250], ["model servers", 100], ["completion", 50]]'
    shown(browser, f"event.most = {{ held: 1000, background: 500, computing: 400 }}; event.work = {tokens}")
    widths = "return [...document.querySelectorAll('.gauge i')].map((bar) => bar.style.width)"
    assert browser.run(widths) == ["25%", "10%", "5%", "25%"]
    assert browser.run("return document.querySelector('.gauge em').style.left") == "50%"
    assert browser.run("return find('text-held').textContent").startswith("400 of 1000 tokens, 40 %: 250 in the queue")
    assert browser.run("return find('gauge-held').classList.contains('over')") is False
    browser.run("pause()")


def test_a_slow_server_is_named_in_its_lane_and_has_a_colour_of_its_own(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until(f"return (function() {{ {BARS} }})() > 20")
    shown(browser, "event.lanes.find((lane) => lane.curve).scale = 4.04")
    words = browser.run(
        "return [...document.querySelectorAll('.slow')].filter((e) => !e.hidden).map((e) => e.textContent)"
    )
    assert words == ["4.0 times slower than measured"]
    strokes = browser.run("return plots.get('curve').plot.series.slice(2).map((series) => series.stroke())")
    dots = "return [...document.querySelectorAll('.dot')].map((dot) => getComputedStyle(dot).backgroundColor)"
    assert len(strokes) == len(set(strokes)) == 2
    assert len(set(browser.run(dots))) == 3
    browser.run("pause()")


def test_a_notice_is_no_problem_and_leads_to_its_section(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    shown(browser, "event.problems = [['Kafka is read.', 'partitions-wait-for-the-queue', 'notice']]")
    assert browser.run("return find('wrong').hidden && !find('notices').hidden")
    link = browser.driver.find_element(By.CSS_SELECTOR, "#notices a").get_attribute("href")
    browser.run("pause()")
    assert link is not None
    browser.driver.get(link)
    section = "return document.getElementById('partitions-wait-for-the-queue').getBoundingClientRect().top"
    assert 0 <= browser.run(section) < 200


def test_plots_without_values_are_folded_into_a_line(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return state.points.length > 3")
    shown(browser, "for (const point of state.points) { point.refused = point.expired = 0 }")
    assert browser.run("return getComputedStyle(find('losses')).display") == "none"
    assert "Calls refused and queries expired" in browser.run("return find('idle').textContent")
    assert browser.run("return getComputedStyle(find('tokens')).display") != "none"
    browser.run("pause()")


def test_callers_of_milliseconds_are_told_from_records_of_half_a_minute(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return state.points.length > 3")
    latency = "{ grpc: [9, 0.05, 0.2, 0, 0, 0, 0], kafka: [9, 20, 28, 0, 0, 0, 0] }"
    shown(browser, f"for (const point of state.points) point.latency = {latency}")
    plot = "const plot = plots.get('latency').plot; return"
    apart = f"{plot} (plot.valToPos(0.05, 'y') - plot.valToPos(28, 'y')) / plot.over.clientHeight"
    assert browser.run(apart) > 0.5
    drawn = f"{plot} plot.series.slice(1, 3).map((series) => [series.width, !!series.dash])"
    assert browser.run(drawn) == [[1, True], [2, False]], "p50 and p99"
    browser.run("pause()")


def test_what_is_left_is_said_with_the_time_that_it_takes(stack: Stack, browser: Browser) -> None:
    browser.open(stack.page)
    browser.until("return state.points.length > 3")
    shown(browser, "for (const point of state.points) point.answered_tokens = 100; event.left = [2000, 15700]")
    text = browser.run("return find('left').textContent")
    assert text == "2000 records of about 16 k tokens left: about 2 min 37 s at the rate of the last 10 s."
    browser.run("pause()")


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
@pytest.mark.parametrize("width", [360, 1280, 1920])
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
