"""`tokenbatch check`: what `--check` of a process does."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

_PROCESSES = ("aggregator", "modelserver")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", nargs="?", choices=_PROCESSES, default=_PROCESSES[0], help="whose (%(default)s)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML; the environment wins over it")
    parser.add_argument("--show-settings", action="store_true", help="print the settings in force first")


def run(options: argparse.Namespace) -> int:
    """The exit code of the process."""
    arguments = ["--check"]
    if options.config:
        arguments += ["--config", str(options.config)]
    if options.show_settings:
        arguments.append("--show-settings")
    code: int = importlib.import_module(f"{options.process}.__main__").main(arguments)
    return code
