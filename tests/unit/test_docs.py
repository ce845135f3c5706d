"""Every link in the docs leads somewhere, every setting that they name is there, and every term is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from aggregator.all_settings import AllSettings
from aggregator.wings.scaler.settings import ScalerSettings
from modelserver.all_settings import AllModelServerSettings

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "helm/**/*.md", "k8s/**/*.md", "loadtest/**/*.md", "tests/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{path} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{target.name} has no heading {anchor}"


NAMING_SETTINGS = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("architecture", "clients", "errors", "runbook")),
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/adr/*.md")),
]
_NAME = re.compile(r"`((?:\w+(?:\[\])?\.)+\w+)`")
_OF_OTHERS = {
    "grpc.aio",
    "grpc.http.overload_protection",
    "grpc.http2.max_deallocating_streams",
    "grpc.max_receive_message_length",
}
_OF_OTHERS |= {"embedding.v1.EmbedResponse", "generation.v1.GenerateResponse"}
_FILES = (".proto", ".py", ".json", ".md", ".csv")


def names(settings: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every setting and group of settings, with dots between them and brackets after lists."""
    for name, field in settings.model_fields.items():
        yield before + name
        kinds: list[Any] = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                is_list = getattr(field.annotation, "__origin__", None) is tuple
                yield from names(kind, f"{before}{name}[]." if is_list else f"{before}{name}.")


PROCESSES = (
    AllSettings,
    AllModelServerSettings,
    ScalerSettings,
)
KNOWN = {name for each in PROCESSES for name in names(each)}
GROUPS = {name.split(".")[0].removesuffix("[]") for name in KNOWN if "." in name}


@pytest.mark.parametrize("page", NAMING_SETTINGS)
def test_every_setting_that_is_named_is_there(page: str) -> None:
    for name in _NAME.findall((ROOT / page).read_text(encoding="utf-8")):
        if name.split(".")[0].removesuffix("[]") in GROUPS and name not in _OF_OTHERS and not name.endswith(_FILES):
            assert name in KNOWN, name


READ_FIRST = (
    "README",
    "CONTRIBUTING",
    *(f"docs/{name}" for name in ("clients", "install", "operate", "page", "runbook", "scaling")),
)
_NOT_PROSE = re.compile(r"^```[\s\S]*?^```$|^(?: {4}|[|#!]).*$", re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)")
_BETWEEN = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |(?<=[.!?:;])\**\s+(?=[A-Z`*\[“\"(])")


@pytest.mark.parametrize("page", READ_FIRST)
def test_lines_and_sentences_are_short(page: str) -> None:
    prose = _NOT_PROSE.sub("\n", (ROOT / f"{page}.md").read_text(encoding="utf-8"))
    assert [line for line in prose.splitlines() if len(line) > 150] == []
    assert [each for each in _BETWEEN.split(_TARGET.sub("]", prose)) if len(each.split()) > 40] == []


def test_an_installation_is_told_in_800_words() -> None:
    assert len((ROOT / "docs/install.md").read_text(encoding="utf-8").split()) <= 800


def test_the_glossary_is_short_and_each_of_its_terms_is_used() -> None:
    _, _, glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")
    rows = re.findall(r"^\| (?!term)([^|]+) \|", glossary, re.MULTILINE)
    files = [file for pattern in ("docs/*.md", "[akm]*/**/*.py") for file in ROOT.glob(pattern)]
    used = " ".join(" ".join(file.read_text(encoding="utf-8") for file in files).lower().split())
    assert 30 <= len(rows) <= 40
    assert [term for row in rows for term in row.split(", ") if term.lower() not in used] == []
