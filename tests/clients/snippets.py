"""The programs of docs/examples, each on a page, and the commands of docs/clients.md that build and run them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PAGE, _STREAMS = ROOT / "docs" / "clients.md", ROOT / "docs" / "flink_kafka_streams.md"
_EXAMPLES = ROOT / "docs" / "examples"
_COMMANDS = re.compile(r"<!-- run: (\S+) -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXPORTS, TOOLS = "exports", "tools"
"""The commands that set variables for a terminal, and those of load tools, by what they are marked as."""


@dataclass(frozen=True, slots=True)
class Page:
    """Files by their path (LANGUAGE/…), and commands in their order, each with the language whose files they need."""

    files: dict[str, str]
    commands: list[tuple[str, str]]

    def of(self, language: str) -> list[str]:
        return [commands for each, commands in self.commands if each == language]

    def write(self, language: str, folder: Path) -> None:
        """Put a language's files into a folder, with a copy of `protos/` beside them, as the page says."""
        for name, content in self.files.items():
            if name.startswith(f"{language}/"):
                file = folder / name.removeprefix(f"{language}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        shutil.copytree(ROOT / "protos", folder / "protos", ignore=shutil.ignore_patterns("__pycache__"))


def read() -> Page:
    """Every file is named in a page."""
    text = _PAGE.read_text(encoding="utf-8")
    linked = text + _STREAMS.read_text(encoding="utf-8")
    files = {str(file.relative_to(_EXAMPLES)): file.read_text() for file in _EXAMPLES.rglob("*") if file.is_file()}
    assert not [name for name in files if f"(examples/{name})" not in linked], "a page links to each program"
    commands = _COMMANDS.findall(text)
    assert text.count("```sh\n") == len(commands), "each block of commands says what runs it"
    return Page(files, commands)
