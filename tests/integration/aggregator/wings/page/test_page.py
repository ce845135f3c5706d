"""The page and its events over HTTP: for many viewers, for slow ones, for none."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Self

import pytest
from typing_extensions import override

from aggregator.wings.page import viewers
from aggregator.wings.page.pages import LivePages
from aggregator.wings.page.viewers import Feed
from aggregator.wings.page.words import Runbook, anchor
from k8s.pod import telemetry
from k8s.pod.http.connections import TIMEOUT_S, State
from k8s.pod.telemetry import Telemetry, TelemetrySettings

LOCAL = TelemetrySettings(metrics_bind="127.0.0.1:0")


class Counting(Feed):
    """Counts its events; each is `size` bytes long."""

    def __init__(self) -> None:
        self.events = 0
        self.read_once = threading.Event()
        self.size = 1
        self.full: list[bool] = []
        self.has_rates = [True, False]

    def rests(self) -> bool:
        """Whether it is read no more: not once in the time of ten events."""
        for _ in range(100):
            self.read_once.clear()
            if not self.read_once.wait(0.2):
                return True
        return False

    @override
    def snapshot(self) -> Mapping[str, object] | None:
        return {"has_rates": self.has_rates.pop(), "text": "</script>"} if self.has_rates else None

    @override
    def read(self, *, full: bool) -> tuple[object, object]:
        self.events += 1
        self.full.append(full)
        self.read_once.set()
        event = {"number": self.events, "filler": "x" * self.size}
        return event, {**event, "history": []} if full else None


@pytest.fixture
def feed() -> Counting:
    return Counting()


@pytest.fixture
def started(feed: Counting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    monkeypatch.setattr(viewers, "EVERY_S", 0.02)
    started = telemetry.start(LOCAL, "test-service")
    started.show(LivePages(feed))
    yield started
    started.shutdown()
    assert "viewers" not in {thread.name for thread in threading.enumerate()}


def get(started: Telemetry, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(started.metrics_address, timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response, response.read()


class Viewer:
    """A browser that reads when the test reads."""

    def __init__(self, started: Telemetry, receive_bytes: int = 0) -> None:
        host, _, port = started.metrics_address.rpartition(":")
        self.connection = socket.socket()
        if receive_bytes:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.connection.settimeout(30)
        self.connection.connect((host, int(port)))
        self.connection.sendall(b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n")
        self.stream = self.connection.makefile("rb")
        self.status = self.stream.readline().split()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.connection.close()

    def event(self) -> dict[str, Any]:
        """The next event."""
        for line in self.stream:
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found
        raise ConnectionResetError


def test_the_page_is_one_file_that_may_load_nothing_from_elsewhere(started: Telemetry) -> None:
    response, body = get(started, "/")
    text = body.decode()
    policy = response.headers["Content-Security-Policy"]
    assert response.status == 200
    assert "default-src 'none'; connect-src 'self'" in policy
    assert not re.findall(r'(?:src|href)="(?!data:)', text.split("<script")[0])
    for part in re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, re.DOTALL):
        assert f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" in policy
    assert "uPlot" in text


def test_the_page_comes_with_the_state_and_with_rates(started: Telemetry) -> None:
    """Also without a script that asks for it; of two looks, of which the first has no differences."""
    (state,) = re.findall(r'<script type="application/json" id="first">(.*?)</script>', get(started, "/")[1].decode())
    assert json.loads(state) == {"has_rates": True, "text": "</script>"}
    (silent,) = re.findall(r'id="first">(.*?)</script>', get(started, "/")[1].decode())
    assert silent == "null"


def test_the_runbook_is_rendered_with_contents_and_links_that_work(started: Telemetry) -> None:
    response, body = get(started, "/runbook")
    assert response.status == 200
    text = body.decode()
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert {anchor(heading) for heading in Runbook} <= anchors
    links = re.findall(r'href="([^"]+)"', text)
    assert set(links) - {"./", "data:,"} == {f"#{each}" for each in anchors}, "contents name each heading"
    assert not re.search(r"^#+ |\]\(", text, re.MULTILINE), "Markdown is left"
    assert "<table>" in text


def test_a_viewer_gets_everything_first_and_then_what_is_new(started: Telemetry) -> None:
    with Viewer(started) as viewer:
        first, second = viewer.event(), viewer.event()
    assert "history" in first
    assert "history" not in second
    assert second["number"] == first["number"] + 1


def test_nothing_is_read_without_a_viewer(started: Telemetry, feed: Counting) -> None:
    with Viewer(started) as viewer:
        viewer.event()
    assert feed.rests()
    events = feed.events
    assert get(started, "/livez")[0].status == 200
    assert feed.events == events
    with Viewer(started) as viewer:
        assert "history" in viewer.event()


def test_viewers_share_each_event_and_one_too_many_is_told_when_to_return(
    started: Telemetry, feed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 20)
    many = [Viewer(started) for _ in range(20)]
    try:
        response, body = get(started, "/live")
        assert (response.status, response.headers["Retry-After"]) == (503, "10")
        assert body == b"too many viewers: close a page\n"
        numbers = [viewer.event()["number"] for viewer in many]
        assert feed.events >= max(numbers)
        assert feed.events < 20 * len(numbers), "events were made for each viewer"
    finally:
        for viewer in many:
            viewer.__exit__()


def test_a_slow_reader_holds_up_nobody_and_gets_the_latest_when_it_reads(started: Telemetry, feed: Counting) -> None:
    feed.size = 200_000
    with Viewer(started, receive_bytes=4096) as slow, Viewer(started) as quick:
        for _ in range(5):
            quick.event()
        feed.size = 1
        missed = quick.event()["number"]
        found = [slow.event()]
        while found[-1]["number"] <= missed:
            found.append(slow.event())
    later = next(event for event in found[1:] if event["number"] > found[0]["number"] + 1)
    assert "history" in later, "it missed events, and did not get everything again"


def test_a_reader_that_reads_nothing_is_disconnected(
    started: Telemetry, feed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMEOUT_S, State.WRITING, 0.1)
    feed.size = 1_000_000
    with Viewer(started, receive_bytes=4096) as stuck:
        assert feed.read_once.wait(30)
        assert feed.rests(), "events are made for who does not read them"
        with suppress(ConnectionResetError):
            stuck.stream.read()  # to the end, which comes
