"""The page: one HTML file with its scripts, its style and the state at its load; and the runbook."""

from __future__ import annotations

import asyncio
import gzip
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
from typing_extensions import override

from aggregator.wings.page.viewers import EVERY_S, Feed, Viewers
from k8s.pod.http.exchange import Exchange
from k8s.pod.monitoring import Pages

_HTML = "text/html; charset=utf-8"
_STATIC = Path(__file__).parent / "static"
_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = ("uPlot.iife.min.js", "state.js", "lanes.js", "plots.js", "page.js")
_NO_OTHER_HOST = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_STATE = b"<!-- state -->"
_FAST = 4
"""The level of gzip for a page with its state: half of the size of level 1, in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page. `policy` (Content-Security-Policy) allows the scripts and styles in it and no other source."""

    body: bytes
    policy: str
    version: str

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Content-Security-Policy": self.policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }


class LivePages(Pages):
    """The page at `/`, with what `feed` gives as events at `/live`, and the runbook that it links to."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._viewers = Viewers(feed)

    @override
    def answer(self, exchange: Exchange) -> bool:
        if exchange.path == "/live":
            self._viewers.add(exchange)
        elif exchange.path == "/":
            exchange.start(self._answer_page(exchange))
        elif exchange.path == "/runbook":
            _answer(exchange, runbook_page(), runbook_page().body)
        else:
            return False
        return True

    async def _answer_page(self, exchange: Exchange) -> None:
        state = await asyncio.to_thread(self._feed.snapshot)
        if state is not None and not state["has_rates"]:  # nobody looked just now: a second look gives differences
            await asyncio.sleep(EVERY_S)
            state = await asyncio.to_thread(self._feed.snapshot)
        encoded = msgspec.json.encode(state).replace(b"<", b"\\u003c")  # no text of it ends the element
        _answer(exchange, live_page(), live_page().body.replace(_STATE, encoded, 1))


def _answer(exchange: Exchange, page: Page, body: bytes) -> None:
    sent = {**page.headers, "Vary": "Accept-Encoding", "Content-Type": _HTML}
    if "gzip" in exchange.header(b"accept-encoding"):
        body, sent["Content-Encoding"] = gzip.compress(body, _FAST, mtime=0), "gzip"
    exchange.answer(200, body, sent)


@cache
def live_page() -> Page:
    """The page that shows batching; `VERSION` in its script tells it to load itself again after an upgrade."""
    text = _read("page.html")
    styles, scripts = [_read(name) for name in _STYLES], [_read(name) for name in _SCRIPTS]
    version = sha256("".join((text, *styles, *scripts)).encode()).hexdigest()[:12]
    scripts = [each.replace('"VERSION"', f'"{version}"') for each in scripts]
    parts = [f"<style>{each}</style>" for each in styles], [f"<script>{each}</script>" for each in scripts]
    body = text.replace("<!-- style -->", "\n".join(parts[0])).replace("<!-- script -->", "\n".join(parts[1]))
    sources = f"style-src {_hashes(styles)}; script-src {_hashes(scripts)}; img-src data:"
    return Page(body.encode(), f"{_NO_OTHER_HOST}; {sources}", version)


@cache
def runbook_page() -> Page:
    """docs/runbook.md, as `runbook.py` made it."""
    style = _read("runbook.css")
    body = _read("runbook.html").replace("<!-- style -->", f"<style>{style}</style>")
    return Page(body.encode(), f"{_NO_OTHER_HOST}; style-src {_hashes([style])}; img-src data:", "")


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hashes(parts: list[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" for part in parts)
