"""The page: whole, alone, and the same for one seed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from loadtest.__main__ import main
from loadtest.report.load import Effort, pods_needed
from loadtest.report.page import page
from loadtest.report.plots import COLOURS, draw, draw_alone
from loadtest.report.section import Plot, Section, Series, Table
from loadtest.simulate.scenario import Kind

LINES = [Series("a", [(0.0, 1.0), (1.0, 2.0)]), Series("b", [(0.0, 2.0), (1.0, 1.0)], steps=True, dashed=True)]
PLOT = Plot("title", "x", "y", LINES, limit=("limit", 1.5), y_max=3.0)
TABLE = Table(("policy", "ms"), [("<ours>", "1.0")])
SECTION = Section("one", "One & only", "Text.", [PLOT, PLOT], TABLE, "python -m loadtest report", "1")


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
    return checker


def test_a_page_needs_nothing_else_and_no_id_occurs_twice() -> None:
    html = page("T", "x", [SECTION])
    found = checked(html)
    assert not found.fetched
    assert len(found.ids) == len(set(found.ids))
    assert "&lt;ours&gt;" in html
    assert "One &amp; only" in html
    assert html == page("T", "x", [SECTION])


def test_every_reference_inside_a_plot_has_its_target() -> None:
    svg = draw(PLOT, "one")
    targets = set(re.findall(r'id="([^"]+)"', svg))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= targets


def test_a_plot_that_stands_alone_brings_its_ink_and_is_well_formed() -> None:
    svg = draw_alone(PLOT, "one")
    root = ET.fromstring(svg)  # noqa: S314 - written above
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for ink in set(re.findall(r"var\((--\w+)\)", svg)):
        assert f"{ink}: #" in svg


@pytest.mark.parametrize("plot", [PLOT, Plot("t", "x", "y", LINES, bars=True), Plot("t", "x", "y", LINES, log_y=True)])
def test_a_plot_takes_its_ink_from_the_page(plot: Plot) -> None:
    svg = draw(plot, "one")
    assert svg.startswith("<svg ")
    assert "var(--ink)" in svg
    assert not re.search(r"#0[1-6]0[1-6]0[1-6]", svg)
    assert ">a<" in svg


def test_a_logarithmic_axis_is_told_in_plain_numbers() -> None:
    points = [(0.0, 40.0), (1.0, 600.0)]
    svg = draw(Plot("t", "x", "y", [Series("a", points)], log_y=True), "one")
    told = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert {"50", "100", "200", "500"} <= set(told)
    assert "10" not in told  # as in 6 times 10 to the power of 2


def test_many_lines_are_named_below_the_axes_where_they_cover_none() -> None:
    def name_and_axis_y(lines: list[Series]) -> tuple[float, float]:
        svg = draw(Plot("t", "the x axis", "y", lines), "one")
        ys = {
            text: float(y)
            for y, text in re.findall(r'<text[^>]*?(?: y="|translate\([\d.]+ )([\d.]+)[^>]*>([^<]+)</text>', svg)
        }
        return ys["a"], ys["the x axis"]

    points = [(0.0, 1.0), (1.0, 2.0)]
    name_y, axis_y = name_and_axis_y([Series(name, points) for name in "abcd"])
    assert name_y > axis_y  # y grows downwards
    name_y, axis_y = name_and_axis_y([Series(name, points) for name in "ab"])
    assert name_y < axis_y


def test_ours_needs_a_fraction_of_the_pods_that_sequential_needs() -> None:
    effort = Effort(quick=True)
    assert pods_needed(Kind.OURS, 400.0, 0.1, effort) == 1
    assert pods_needed(Kind.SEQUENTIAL, 400.0, 0.1, effort) == 9  # of 50 a second each


def test_where_no_number_of_pods_keeps_the_promise_the_search_ends() -> None:
    assert pods_needed(Kind.OURS, 400.0, 0.015, Effort(quick=True)) is None  # a step takes 20 ms


def test_a_line_keeps_its_look_whatever_lines_stand_before_it() -> None:
    points = [(0.0, 1.0), (1.0, 2.0)]
    alone = draw(Plot("t", "x", "y", [Series("a", points, look=2)]), "one")
    assert COLOURS[2] in alone
    assert COLOURS[0] not in alone


def test_a_line_on_its_own_that_is_called_what_its_axis_is_called_is_not_named_again() -> None:
    def count(name: str) -> int:
        return draw(Plot("t", "x", "tokens", [Series(name, [(0.0, 1.0), (1.0, 2.0)])]), "one").count(f">{name}<")

    assert count("tokens") == count("other") == 1


def test_columns_of_names_are_marked_as_such() -> None:
    table = Table(("case", "policy", "ms"), [("a", "b", "1.0")], names=2)
    html = page("T", "x", [Section("one", "One", "Text.", [], table, "python", "1")])
    assert re.findall(r'<t[hd] class="name">([^<]+)<', html) == ["case", "policy", "a", "b"]


def test_names_stand_below_the_bars_that_they_belong_to() -> None:
    bars = [Series("a", [(0.0, 1.0), (1.0, 2.0)])]
    svg = draw(Plot("t", "", "y", bars, bars=True, x_names=("first", "second")), "one")
    at = [float(x) for x in re.findall(r"translate\(([\d.]+) [\d.]+\)[^>]*>(?:first|second)<", svg)]
    assert len(at) == 2
    assert at[0] < at[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_writes_the_whole_report(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert main(["report", "--quick", "--out", str(file)]) == 0
    html = file.read_text(encoding="utf-8")
    assert not checked(html).fetched
    names = ("knee", "attainment", "fill", "gpus", "controller", "hour", "day", "cases")
    assert all(f'<section id="{name}">' in html for name in names)
    assert html.count("<svg ") == 15
    assert main(["report", "--quick", "--out", str(tmp_path)]) == 2


@pytest.mark.slow
def test_a_section_is_made_anew_by_the_command_that_it_names(tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("one.html", "two.html")]
    assert main(["report", "--quick", "--only", "controller", "--seed", "3", "--out", str(pages[0])]) == 0
    command = re.findall(r"<code>python -m loadtest ([^<]+)</code>", pages[0].read_text(encoding="utf-8"))
    assert command == ["report --only controller --seed 3 --quick"]
    assert main([*command[0].split(), "--out", str(pages[1])]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()
