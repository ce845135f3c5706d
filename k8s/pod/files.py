"""The files and folders that settings name: each is tried before its first use, and refused by its setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from pydantic import BaseModel

from k8s.pod.errors import StartError

_FILES, FOLDERS = "file", "cache"
"""How the names of files and folders end. Another path need not be there."""


def paths(value: object, name: str = "") -> Iterator[tuple[str, Path]]:
    """Each file and folder that settings name, by its dotted name."""
    if isinstance(value, Path):
        if name.endswith((_FILES, FOLDERS)):
            yield name, value
    elif isinstance(value, BaseModel):
        for each, inside in value:
            yield from paths(inside, f"{name}.{each}" if name else each)
    elif isinstance(value, tuple):
        for place, inside in enumerate(value):
            yield from paths(inside, f"{name}[{place}]")


def readable(setting: str, path: Path) -> None:
    """Raises StartError for a file that cannot be read."""
    try:
        with path.expanduser().open("rb"):
            pass
    except OSError as error:
        raise StartError(f"{setting}: {path} cannot be read ({reason_of(error)}): is the path right?") from None


def writable(setting: str, path: Path) -> None:
    """Raises StartError for a folder that cannot be made or written to."""
    there = path.expanduser()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        TemporaryFile(dir=there).close()  # root may write where a mode says no, and not where a mount does
    except OSError as error:
        raise StartError(
            f"{setting}: {path} cannot be written to ({reason_of(error)}): name a folder of this user's"
        ) from None


def all_readable(settings: BaseModel, name: str) -> None:
    """Raises StartError for the first file of the settings group `name` that cannot be read."""
    for setting, path in paths(settings, name):
        readable(setting, path)


def reason_of(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
