"""The page: whole, alone, and the same for one seed."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.report.load import Effort, pods_needed
from loadtest.simulate.scenario import Kind


class Checker(HTMLParser):
    """Notes ids and what is fetched from elsewhere, and that every element closes in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        outside = [value for name, value in attrs if name in {"src", "href", "xlink:href"} and value]
        self.fetched += [value for value in outside if not value.startswith("#")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert not checker.open
    assert len(checker.ids) == len(set(checker.ids))
    return checker


def test_ours_needs_a_fraction_of_the_pods_that_sequential_needs() -> None:
    effort = Effort(quick=True)
    assert pods_needed(Kind.OURS, 400.0, 0.1, effort) == 1
    assert pods_needed(Kind.SEQUENTIAL, 400.0, 0.1, effort) == 9  # of 50 a second each


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_writes_the_whole_report(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert main(["report", "--quick", "--out", str(file)]) == 0
    html = file.read_text(encoding="utf-8")
    assert not checked(html).fetched
    names = ("knee", "attainment", "fill", "gpus", "controller", "hour", "day", "cases", "mixed")
    assert all(f'<section id="{name}">' in html for name in names)
    assert html.count("<svg ") == 17
    assert main(["report", "--quick", "--out", str(tmp_path)]) == 2
