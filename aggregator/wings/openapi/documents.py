"""The OpenAPI document and the page made of it.

`openapi.json` is written by `python -m tests.integration.aggregator.wings.openapi.document`, from the routes, the types
of their bodies and docs/http_fields.md. Neither names another host, and the page runs no script.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from aggregator.sources.http.static import Static

FILE = Path(__file__).parent / "openapi.json"
_STYLE = """
html { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem }
pre { overflow: auto; padding: .5rem; border: 1px solid #8886 }
table { border-collapse: collapse; display: block; overflow: auto }
td, th { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top }
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body><main>
<h1>{title}</h1>
<p>{description}</p>
<p>For programs: <a href="/openapi.json"><code>/openapi.json</code></a>, OpenAPI {openapi}.</p>
<ul>{contents}</ul>
{operations}
</main></body>
</html>
"""
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@cache
def _document() -> Static:
    return Static(FILE.read_bytes(), {"content-type": "application/json"})


@cache
def _page() -> Static:
    return Static(page(json.loads(FILE.read_bytes())).encode(), _HEADERS)


OPENAPI: Mapping[str, Callable[[], Static]] = {"/openapi.json": _document, "/docs": _page}


def page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML: a section for each operation, with its fields and an example."""
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = document["components"]["schemas"]
    info = document["info"]
    return _PAGE.format(
        title=_text(info["title"]),
        description=_text(info["description"]),
        openapi=_text(document["openapi"]),
        style=_STYLE,
        contents="".join(
            f'<li><a href="#{_text(at["operationId"])}">{_text(name)}</a></li>' for name, at in operations
        ),
        operations="".join(piece for name, operation in operations for piece in _section(name, operation, schemas)),
    )


def _section(name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    anchor, says = _text(operation["operationId"]), _text(operation["summary"])
    yield f'<h2 id="{anchor}"><code>{_text(name)}</code></h2><p>{says}</p>'
    if "requestBody" not in operation:
        return
    content = operation["requestBody"]["content"]["application/json"]
    yield f"<pre>{_text(json.dumps(content['example'], indent=1, ensure_ascii=False))}</pre>"
    yield "<table><tr><th>field</th><th>type</th><th></th><th>examples</th></tr>"
    schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
    for field, of_field in schema["properties"].items():
        needed = "required. " if field in schema.get("required", ()) else ""
        examples = ", ".join(f"<code>{_text(json.dumps(each))}</code>" for each in of_field.get("examples", ()))
        said = _text(needed + of_field.get("description", ""))
        yield f"<tr><td><code>{_text(field)}</code></td><td>{_text(_kind(of_field))}</td><td>{said}</td>"
        yield f"<td>{examples}</td></tr>"
    yield "</table>"


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema's type in words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(json.dumps(each) for each in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _text(text: str) -> str:
    return html.escape(text)
