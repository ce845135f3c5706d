"""Every error of docs/errors.md has its form over HTTP, and every form that the page names is tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aggregator.errors import Code
from aggregator.request.request import Failure
from aggregator.sources.http.errors import described
from tests.integration.frontdoor.test_http import BAD, NO_ROUTE
from tests.integration.frontdoor.test_http_hostile import WRONG

CODES, _, WITH_HTTP = (
    (Path(__file__).parents[3] / "docs" / "errors.md").read_text(encoding="utf-8").partition("## Over HTTP")
)
OVER_HTTP = WITH_HTTP.partition("## When to retry")[0]
ROW = re.compile(r"^\| (?P<codes>`[A-Z_`, ]+`) \| (?P<status>\d{3}) \| (?P<form>.*?) \|$", re.MULTILINE)


def forms() -> Iterator[tuple[Code, int, list[str]]]:
    """Code, status, and what is in quotes beside it: the type, then one code for each of the row's."""
    for row in ROW.finditer(OVER_HTTP):
        for number, name in enumerate(re.findall(r"`(\w+)`", row["codes"])):
            kind, *names = re.findall(r"`([\w-]+)`", row["form"])
            yield Code[name], int(row["status"]), [kind, names[number]]


def test_every_code_that_does_not_belong_to_brokers_alone_has_a_form() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \d+ \| (.*?) \|", CODES, re.MULTILINE)
    assert len(rows) == 11
    named = {Code[name] for name, meaning in rows if not meaning.startswith("Kafka and Redis only")}
    assert {code for code, _, _ in forms()} == named | {Code.FAILED_PRECONDITION}


@pytest.mark.parametrize("form", list(forms()), ids=lambda form: form[0].name)
def test_a_failure_has_the_form_that_the_page_shows(form: tuple[Code, int, list[str]]) -> None:
    code, status, (kind, name) = form
    found_status, body, headers = described(Failure(code, "why", retryable=True, retry_after_s=0.25))
    error = msgspec.json.decode(body)["error"]
    assert (found_status, error["type"], error["code"], error["message"]) == (status, kind, name, "why")
    authenticate = {"www-authenticate": "Bearer"} if code is Code.UNAUTHENTICATED else {}
    assert headers == {"x-should-retry": "true", "retry-after": "1", "retry-after-ms": "250", **authenticate}


def test_every_answer_to_what_never_becomes_a_request_is_tested() -> None:
    table = OVER_HTTP[OVER_HTTP.index("| what comes | answer |") :]
    named = {(int(status), code) for status, code in re.findall(r"\b(\d{3}) `(\w+)`", table)}
    tested = {(status, code) for _, status, code in WRONG.values()} | {(status, code) for *_, status, code in NO_ROUTE}
    tested |= {(400, "invalid_value") for case in BAD if case[2] == 400}
    assert named == tested - {(404, "model_not_found")}
