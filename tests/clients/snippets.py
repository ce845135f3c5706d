"""Take the programs out of a page of documentation, and the commands that build and run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = tuple(Path(f"protos/{name}/v1/{name}.proto") for name in ("embedding", "generation"))

_BLOCK = re.compile(r"<!-- (file|run): (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """Files by their path (LANGUAGE/…), and commands in their order, each with the language whose files they need."""

    files: dict[str, str]
    commands: list[tuple[str, str]]

    def write(self, language: str, folder: Path) -> None:
        """Put a language's files into a folder, with the contracts beside them."""
        for name, content in self.files.items():
            if name.startswith(f"{language}/"):
                file = folder / name.removeprefix(f"{language}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        for contract in CONTRACTS:
            (folder / contract).parent.mkdir(parents=True, exist_ok=True)
            (folder / contract).write_text((ROOT / contract).read_text())


def read(page: Path) -> Page:
    """The marked blocks of a page of Markdown."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return Page(
        {name: content for kind, name, content in blocks if kind == "file"},
        [(name, content) for kind, name, content in blocks if kind == "run"],
    )
