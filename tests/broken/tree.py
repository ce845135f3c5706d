"""Copies of the tree, to be broken."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.broken.builds import Build

ROOT = Path(__file__).parents[2]
_PACKAGES = ("aggregator", "k8s", "protos")
_LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", ".run", "mutants", "__pycache__", ".*_cache", ".hypothesis", ".coverage*")
)


def copy_tree(folder: Path) -> None:
    """All that tests need, in place of what was in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")


@contextmanager
def broken(tree: Path, build: Build) -> Generator[None]:
    """A copy of the tree with one fault in it, and without it again afterwards."""
    sound = (tree / build.file).read_text()
    build.put_into(tree)
    try:
        yield
    finally:
        (tree / build.file).write_text(sound)


def broken_aggregator(folder: Path, build: Build) -> dict[str, str]:
    """What the environment of `python -m aggregator` says for the broken one to run; its copy stays in `folder`."""
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT)
    build.put_into(folder)
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}  # or the working folder would go before it
