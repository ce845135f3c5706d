"""The inputs that earlier searches found worth keeping: a text file for each target, a line for each input.

They reach all that those searches reached, and no two of them the same. Every test run gives them to their targets
again, and every search starts from them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fuzz.target import Target

FOLDER = Path(__file__).parent / "corpus"
_MERGE_S = 600.0


def read(name: str) -> Sequence[bytes]:
    """A target's inputs; none where none were kept yet."""
    file = FOLDER / f"{name}.txt"
    return [ast.literal_eval(line) for line in file.read_text().splitlines()] if file.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> None:
    """Keep these inputs and no others, the shortest first, each as Python writes bytes."""
    FOLDER.mkdir(exist_ok=True)
    lines = [f"{data!r}\n" for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    (FOLDER / f"{name}.txt").write_text("".join(lines))


def keep(target: Target, found: Path) -> int:
    """Keep the fewest of the inputs in a folder that reach as much as all of them; returns how many."""
    with tempfile.TemporaryDirectory() as chosen:
        command = (sys.executable, "-m", "tests.fuzz.child", target.name, "-merge=1", chosen, str(found))
        subprocess.run(command, check=True, capture_output=True, timeout=_MERGE_S)
        inputs = [file.read_bytes() for file in Path(chosen).iterdir()]
    write(target.name, inputs)
    return len(inputs)
