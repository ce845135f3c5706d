"""Tell mutants apart by what they change."""

from __future__ import annotations

from dataclasses import dataclass

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.format_utils import orig_function_and_class_names_from_key


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """What one mutant changes. Numbers would shift with every line above; this stays while the line stays."""

    file: str
    function: str
    was: str
    now: str

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.file}, {self.function}\n- {self.was}\n+ {self.now}"


def change(mutant: str, file: str) -> Change:
    """What this mutant changes."""
    function, class_name = orig_function_and_class_names_from_key(mutant)
    lines = get_diff_for_mutant(mutant, path=file).splitlines()[2:]
    was, now = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return Change(file, f"{class_name}.{function}" if class_name else function, was, now)
