"""`python -m modelserver profile`: measure the profile as a start does, without the cache, and write it as files."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.modes import Started
from modelserver.settings import ModelServerSettings
from modelserver.wings.profile import store
from modelserver.wings.profile.profiler import SaturationProfiler
from modelserver.wings.profile.settings import ProfileSettings

_log = logging.getLogger(__name__)

PURPOSE = "measure the saturation profile, write it and exit"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", required=True, help="folder for profile.json and profile.csv"
    )


def run(options: Namespace, settings: ModelServerSettings, files: ModelFiles, started: Started) -> int:
    """The exit code. Raises CannotStart."""
    wanted = settings.group(ProfileSettings) or ProfileSettings()
    with TemporaryDirectory() as cache:
        profile = wanted.model_copy(update={"enabled": True, "file": None, "cache": Path(cache)})
        grpc = settings.grpc.model_copy(update={"bind": "127.0.0.1:0"})
        profiler = started(settings.model_copy(update={"profile": profile, "grpc": grpc}), files)
    assert isinstance(profiler, SaturationProfiler), "Another wing measures. This is a bug."
    if profiler.profile is None:
        raise CannotStart("no profile was measured: see the log (one that generates measures its steps at each start)")
    options.out.mkdir(parents=True, exist_ok=True)
    store.save(profiler.profile, options.out / "profile.json")
    store.save_csv(profiler.profile, options.out / "profile.csv")
    _log.info("wrote the profile", extra={"folder": str(options.out)})
    return 0
