"""`tokenbatch redrive`: the aggregator's command of that name."""

from __future__ import annotations

import argparse

from aggregator.all_settings import AllSettings
from aggregator.wings.redrive import command
from aggregator.wings.redrive.command import add_arguments

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace) -> int:
    """The exit code."""
    return command.run(argparse.Namespace(**{"config": None, **vars(options)}), AllSettings)
