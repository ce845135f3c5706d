"""What tests/mutants/equal.toml lists are changes to lines that exist, each with a reason."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.survivors import listed

ROOT = Path(__file__).parents[2]


def test_every_change_listed_as_equal_is_to_a_line_that_exists_and_has_a_reason() -> None:
    for change, why in listed().items():
        lines = {line.strip() for line in (ROOT / change.file).read_text().splitlines()}
        assert set(change.was.splitlines()) <= lines, f"these lines are gone: {change}"
        assert change.was != change.now, f"this changes nothing: {change}"
        assert why, f"no reason is given: {change}"
