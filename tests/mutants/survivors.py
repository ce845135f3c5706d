"""Tell mutants apart by what they change, and read the list of those that are equal to the original."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

LIST = Path(__file__).parent / "equal.toml"


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """What one mutant changes. Numbers would shift with every line above; this stays while the line stays."""

    file: str
    function: str
    was: str
    now: str

    def __str__(self) -> str:
        """As it stands in the list."""
        return f'[["{self.file}"]]\nfunction = "{self.function}"\nwas = {_quoted(self.was)}\nnow = {_quoted(self.now)}'


def change(mutant: str, file: str) -> Change:
    """What this mutant changes."""
    function, class_name = orig_function_and_class_names_from_key(mutant)
    lines = get_diff_for_mutant(mutant, path=file).splitlines()[2:]
    was, now = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return Change(file, f"{class_name}.{function}" if class_name else function, was, now)


def listed() -> Mapping[Change, str]:
    """The mutants that are equal to the original, each with the reason why."""
    tables = tomllib.loads(LIST.read_text())
    return {
        Change(file, entry["function"], entry["was"], now): entry["why"]
        for file, entries in tables.items()
        for entry in entries
        for now in _each(entry["now"])
    }


def _each(now: str | Iterable[str]) -> Iterable[str]:
    return (now,) if isinstance(now, str) else now


def _quoted(text: str) -> str:
    if "\n" in text:
        return f"'''\n{text}'''"
    return f"'{text}'" if "'" not in text else f"'''{text}'''"
