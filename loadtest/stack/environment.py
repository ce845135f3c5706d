"""Environments of their own for programs whose packages do not fit ours: one for each list that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError

_LISTS = Path(__file__).parents[2] / "requirements"


def python_of(name: str) -> Path:
    """The Python of the environment of `requirements/NAME.txt`, installed when that has changed. Raises StackError."""
    root, listed = Path(sys.prefix) / name, _LISTS / f"{name}.txt"
    python, stamp, wanted = root / "bin" / "python", root / "installed", listed.read_text(encoding="utf-8")
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        ERRORS.print(f"installing {len(wanted.splitlines())} packages: {name}")
        _uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(root))
        _uv("pip", "sync", "--quiet", "--python", str(python), str(listed))
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _uv(*arguments: str) -> None:
    command = [str(Path(sys.prefix) / "uv" / "bin" / "uv"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"the packages cannot be installed:\n{done.stderr[-2000:]}")
