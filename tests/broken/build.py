"""What a broken build is: one small fault, put into a copy of the tree, and the tests that must fail of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class NoMatch(Exception):
    """The text that a build replaces does not stand in its file, or more than once: the build has rotted."""


@dataclass(frozen=True, slots=True)
class Build:
    """One fault: in `file`, `old` (which stands there once) becomes `new`.

    `rule` is what the fault breaks. Each of `tests` (path::name) must fail of it, and its name tells the rule.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def broken(self, source: str) -> str:
        """The file's text with the fault in it. Raises NoMatch."""
        found = source.count(self.old)
        if found != 1 or self.old == self.new:
            raise NoMatch(f"{self.name}: the text to replace stands {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)

    def put_into(self, tree: Path) -> None:
        """Break a copy of the tree. Raises NoMatch."""
        file = tree / self.file
        file.write_text(self.broken(file.read_text()))
