"""Every link in the docs to a file of this repository, and to a heading in one, leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
