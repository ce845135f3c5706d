"""Keep tokenizers by fingerprint, in memory and on disk, so that each is fetched once."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from aggregator.tokenizers.tokenizer import TOKENIZER_FILE, OpenFast, Tokenizer

_LOG = logging.getLogger(__name__)


def tokenizer_fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over the files in the order of their names: name, NUL, size, NUL, content."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


class TokenizerMismatch(Exception):
    """Tokenizer files that do not match their fingerprint, or have invalid names."""


class TokenizerCache:
    """One tokenizer per fingerprint, shared by all models. It blocks, so it is called off the event loop.

    Files are in `<folder>/<fingerprint>/`; in a temporary folder where `folder` cannot be written.
    """

    def __init__(self, folder: Path, open_fast: OpenFast | None = None) -> None:
        self._folder = folder.expanduser()
        self._open_fast = open_fast
        self._open: dict[str, Tokenizer] = {}
        self._lock = Lock()

    def get(self, fingerprint: str) -> Tokenizer | None:
        """The tokenizer, if this process or another has put it here; None if not, or if its files are damaged."""
        with self._lock:
            if fingerprint in self._open:
                return self._open[fingerprint]
            folder = self._folder / fingerprint
            if not fingerprint.isalnum() or not _holds(folder, fingerprint):
                return None
            return self._opened(fingerprint, folder)

    def put(self, fingerprint: str, files: Mapping[str, bytes]) -> Tokenizer:
        """Keep the files and open them. Raises TokenizerMismatch, or ValueError for files that are not a tokenizer."""
        _check(fingerprint, files)
        with self._lock:
            if fingerprint in self._open:
                return self._open[fingerprint]
            try:
                folder = _store(self._folder, fingerprint, files)
            except OSError as error:
                _LOG.warning("tokenizer cache could not be written", extra={"error": str(error)})
                folder = _store(Path(tempfile.mkdtemp(prefix="tokenbatch-")), fingerprint, files)
            return self._opened(fingerprint, folder)

    def _opened(self, fingerprint: str, folder: Path) -> Tokenizer:
        tokenizer = Tokenizer(folder, self._open_fast)
        self._open[fingerprint] = tokenizer
        return tokenizer


def _check(fingerprint: str, files: Mapping[str, bytes]) -> None:
    for name in files:
        if not name or name.startswith(".") or not set(name).isdisjoint("/\\\0"):
            raise TokenizerMismatch(f"{name!r} is not a plain file name")
    if TOKENIZER_FILE not in files:
        raise TokenizerMismatch(f"there is no {TOKENIZER_FILE} among {sorted(files)}")
    actual = tokenizer_fingerprint(files)
    if actual != fingerprint:
        raise TokenizerMismatch(f"the files' fingerprint is {actual}, not {fingerprint}")


def _holds(folder: Path, fingerprint: str) -> bool:
    try:
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
    except OSError:
        return False
    return TOKENIZER_FILE in files and tokenizer_fingerprint(files) == fingerprint


def _store(folder: Path, fingerprint: str, files: Mapping[str, bytes]) -> Path:
    """Write the files so that other processes see all of them or none."""
    place = folder / fingerprint
    if _holds(place, fingerprint):
        return place
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        shutil.rmtree(place, ignore_errors=True)  # damaged, or it would have been taken above
        draft.rename(place)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not _holds(place, fingerprint):  # else another process was first
            raise
    return place
