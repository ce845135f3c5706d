"""Render docs/runbook.md for the page: `python -m helm.generate` writes it beside the page's other files.

It needs a renderer of Markdown, which the aggregator does not: so no other module here imports this one.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from aggregator.wings.page.words import anchor

FILE = Path("aggregator/wings/page/static/runbook.html")
_SOURCE = Path(__file__).parents[3] / "docs" / "runbook.md"
_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runbook of tokenbatch</title>
<link rel="icon" href="data:,">
<!-- style -->
</head>
<body class="runbook">
<header><a href="./">Live page</a></header>
<nav aria-label="Contents">
<ul>
{contents}</ul>
</nav>
<main>
{body}</main>
</body>
</html>
"""


def runbook_html() -> str:
    """The runbook with contents, and links that work where nothing else of docs/ is served."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(_SOURCE.read_text(encoding="utf-8"))
    contents: list[str] = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            name = _text(inline.children or ())
            opening.attrSet("id", anchor(name))
            level = f' class="{opening.tag}"' if opening.tag != "h1" else ""
            contents.append(f'<li{level}><a href="#{anchor(name)}">{html.escape(name)}</a></li>\n')
    for token in tokens:
        if token.children:
            token.children = list(_local(token.children))
    return _DOCUMENT.format(contents="".join(contents), body=markdown.renderer.render(tokens, markdown.options, {}))


def _text(tokens: Sequence[Token]) -> str:
    return "".join(token.content for token in tokens if token.type in {"text", "code_inline"})


def _local(tokens: Sequence[Token]) -> Iterator[Token]:
    """The same, but behind the text of a link to another page of docs/ stands the name of that page instead."""
    page = ""
    for token in tokens:
        if token.type == "link_open" and not str(token.attrGet("href")).startswith(("#", "https://")):
            page = str(token.attrGet("href")).partition("#")[0]
        elif token.type == "link_close" and page:
            named = Token("text", "", 0)
            named.content = f", docs/{page}"
            yield named
            page = ""
        else:
            yield token
