"""The page: one HTML file with its script and style, made from the files in `static/`; and the runbook."""

from __future__ import annotations

import gzip
import html
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from typing_extensions import override

from aggregator.wings.page.viewers import Feed, Viewers
from k8s.pod.http.exchange import Exchange
from k8s.pod.monitoring import Pages

_HTML = "text/html; charset=utf-8"
_STATIC = Path(__file__).parent / "static"
_RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"
_NO_OTHER_HOST = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_RUNBOOK_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Runbook of tokenbatch</title>
<style>{style}</style>
</head>
<body><main>{main}</main></body>
</html>
"""
_RUNBOOK_STYLE = """
html { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; font: inherit }
"""


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
        self._viewers = Viewers(feed)

    @override
    def answer(self, exchange: Exchange) -> bool:
        if exchange.path == "/live":
            self._viewers.add(exchange)
            return True
        found = {"/": live_page, "/runbook": runbook_page}.get(exchange.path, lambda: None)()
        if found is None:
            return False
        body, sent = found.body, {**found.headers, "Vary": "Accept-Encoding", "Content-Type": _HTML}
        if found is live_page() and "gzip" in exchange.header(b"accept-encoding"):
            body, sent["Content-Encoding"] = live_page_compressed(), "gzip"
        exchange.answer(200, body, sent)
        return True


@cache
def live_page() -> Page:
    """The page that shows batching; `VERSION` in its script tells it to load itself again after an upgrade."""
    text = _read("page.html")
    styles = [_read("uPlot.min.css"), _read("page.css")]
    scripts = [_read("uPlot.iife.min.js"), _read("page.js")]
    version = sha256("".join((text, *styles, *scripts)).encode()).hexdigest()[:12]
    scripts[1] = scripts[1].replace('"VERSION"', f'"{version}"')
    parts = [f"<style>{each}</style>" for each in styles], [f"<script>{each}</script>" for each in scripts]
    body = text.replace("<!-- style -->", "\n".join(parts[0])).replace("<!-- script -->", "\n".join(parts[1]))
    sources = f"style-src {_hashes(styles)}; script-src {_hashes(scripts)}; img-src data:"
    return Page(body.encode(), f"{_NO_OTHER_HOST}; {sources}", version)


@cache
def live_page_compressed() -> bytes:
    return gzip.compress(live_page().body, mtime=0)


@cache
def runbook_page() -> Page | None:
    """docs/runbook.md with an anchor for each heading; None where it is not installed."""
    try:
        text = _RUNBOOK.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    sections: list[str] = []
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        title, _, rest = section.partition("\n")
        name = title.lstrip("#").strip()
        anchor = re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")
        level = max(1, len(title) - len(title.lstrip("#")))
        heading = f'<h{level} id="{anchor}">{html.escape(name)}</h{level}>' if name else ""
        sections.append(f"{heading}<pre>{html.escape(rest.strip())}</pre>")
    body = _RUNBOOK_HTML.format(style=_RUNBOOK_STYLE, main="".join(sections))
    return Page(body.encode(), f"{_NO_OTHER_HOST}; style-src {_hashes([_RUNBOOK_STYLE])}", "")


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hashes(parts: list[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" for part in parts)
