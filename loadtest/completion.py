"""`tokenbatch completion`: a script that completes the command in a shell."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import shtab

from loadtest.__main__ import parser_of

_HOW = """bash: tokenbatch completion bash > ~/.local/share/bash-completion/completions/tokenbatch
zsh: tokenbatch completion zsh > DIR/_tokenbatch, where DIR is in $fpath, before compinit runs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.epilog = _HOW
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(options: argparse.Namespace) -> int:
    """The exit code."""
    from loadtest.tokenbatch import COMMANDS, DOES  # noqa: PLC0415 - which names this module

    parser = parser_of("tokenbatch", DOES, COMMANDS, [command.name for command in COMMANDS])
    _complete_files(parser)
    try:
        print(shtab.complete(parser, options.shell), flush=True)
    except BrokenPipeError:  # its reader, such as head, wants no more; neither must the interpreter flush it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Options that take a path complete names of files."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.nargs == argparse.PARSER and isinstance(action.choices, dict):  # subcommands, each with its parser
            for each in action.choices.values():
                _complete_files(each)
        elif action.type is Path:
            told: Any = action
            told.complete = shtab.FILE
