"""Put sections together as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadtest.plots import draw
from loadtest.section import Section, Table

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --faint: #6b7580; --code: #f2f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e6e9ec; --faint: #8b949e; --code: #22272c; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: 1rem 0; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid var(--faint); white-space: normal; vertical-align: bottom; }
.name { text-align: left; }
code { background: var(--code); padding: .1rem .3rem; overflow-wrap: anywhere; }
nav a { color: inherit; margin-right: 1rem; display: inline-block; } small { color: var(--faint); }
@media print {
  :root { --paper: #fff; --ink: #000; --faint: #777; --code: #fff; }
  body { max-width: none; font-size: 10pt; } nav { display: none; }
  section + section { break-before: page; }
  h2, h2 + p { break-after: avoid; } svg, tr { break-inside: avoid; } svg { max-width: 15cm; }
  .wide { overflow: visible; } table { font-size: 7.5pt; } th, td { padding-right: .4rem; }
}
"""


_NAME = ' class="name"'


def page(title: str, text: str, sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a> ' for section in sections)
    body = "\n".join(map(_section, sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>\n"
        f"<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    plots = "\n".join(draw(plot, f"{section.name}{number}") for number, plot in enumerate(section.plots))
    return (
        f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n{plots}\n'
        f"{_table(section.table)}\n<p><small>seed {escape(section.seed)}</small> "
        f"<code>{escape(section.command)}</code></p>\n</section>"
    )


def _table(table: Table) -> str:
    head = _row("th", table.columns, table.names)
    rows = "".join(_row("td", row, table.names) + "\n" for row in table.rows)
    return f'<div class="wide"><table><thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>'


def _row(tag: str, cells: Sequence[str], names: int) -> str:
    text = "".join(
        f"<{tag}{_NAME if number < names else ''}>{escape(cell)}</{tag}>" for number, cell in enumerate(cells)
    )
    return f"<tr>{text}</tr>"
