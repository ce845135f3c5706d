"""What became of the broken builds: a file for each, and a table of them in docs/reliability.md."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.broken.builds import BUILDS

FOLDER = Path(".run/broken")
DOCUMENT = Path("docs/reliability.md")
_BEGIN, _END = "<!-- broken builds: written by `make broken` -->\n", "<!-- end of broken builds -->"
_HEADER = "| broken on purpose | the rule | the test that fails of it | at commit |\n|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Result:
    """One build as it was last run; `survived` are the tests that passed though they should have failed."""

    name: str
    survived: tuple[str, ...]
    seconds: float
    commit: str

    @property
    def caught(self) -> bool:
        """Whether every test failed that should."""
        return not self.survived


def keep(result: Result) -> None:
    """Keep a result, in place of an earlier one."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{result.name}.json").write_text(json.dumps(asdict(result), indent=2) + "\n")


def kept(name: str) -> Result | None:
    """A build's last result; None where there is none."""
    try:
        told = json.loads((FOLDER / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    return Result(told["name"], tuple(told["survived"]), told["seconds"], told["commit"])


def write_document() -> None:
    """Put every result into the table; a build that was not run keeps the line that it had."""
    head, rest = DOCUMENT.read_text().split(_BEGIN)
    old, tail = rest.split(_END)
    lines = {found[1]: found[0] for found in re.finditer(r"^\| ([a-z0-9-]+) \|.*$", old, re.MULTILINE)}
    for build in BUILDS:
        result = kept(build.name)
        if result is not None:
            tests = "**none**" if result.survived else ", ".join(f"`{test}`" for test in build.tests)
            lines[build.name] = f"| {build.name} | {build.rule} | {tests} | {result.commit} |"
    rows = "".join(f"{lines[build.name]}\n" for build in BUILDS if build.name in lines)
    DOCUMENT.write_text(f"{head}{_BEGIN}{_HEADER}{rows}{_END}{tail}")
