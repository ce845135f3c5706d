"""`tokenbatch`: in one command what `python -m loadtest` and `python -m aggregator` do for users, with completion."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from loadtest.__main__ import COMMANDS as OF_LOADTEST
from loadtest.__main__ import Command, execute, parser_of

DOES = "Run tokenbatch here, send it texts, check its settings, plan its size, and put back dead letters."
COMMANDS = (
    *(command for command in OF_LOADTEST if command.name in {"up", "produce", "embed"}),
    Command("rank", "loadtest.rank", "order documents by how well they answer a query"),
    *(command for command in OF_LOADTEST if command.name == "plan"),
    Command("check", "loadtest.check", "try all that a process's settings name, and exit"),
    Command("redrive", "loadtest.redrive", "put dead letters back on their Kafka topics, after a fix"),
    Command("completion", "loadtest.completion", "print what completes this command in a shell"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return execute(parser_of("tokenbatch", DOES, COMMANDS, arguments[:1]), arguments)


if __name__ == "__main__":
    sys.exit(main())
