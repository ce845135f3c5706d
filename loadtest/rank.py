"""`tokenbatch rank`: order documents by how well they answer a query."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenbatch_client import Client, TokenbatchError

from loadtest.options import LOST, fail, positive, positive_int
from loadtest.questions import read_lines
from loadtest.screen import OUTPUT, plain_table
from loadtest.stack.addresses import running_stack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT")
    parser.add_argument("--file", type=Path, metavar="F", help="documents, one a line, instead of these arguments")
    parser.add_argument(
        "--target", metavar="HOST:PORT", help="the aggregator's; absent: that of the stack running here"
    )
    parser.add_argument("--model", default="", help="name or alias; absent: the first one that ranks there")
    parser.add_argument("--top-n", type=positive_int, default=0, metavar="N", help="show the N best; absent: all")
    parser.add_argument("--timeout-s", type=positive, default=60.0, metavar="S", help="deadline (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when a document got no score, 2 when it could not be done."""
    try:
        documents = options.documents or read_lines(options.file) if options.file or options.documents else []
        if not documents:
            return fail(options.prog, ValueError("give documents, or a --file of them"))
        with Client(options.target or running_stack().grpc, timeout_s=options.timeout_s) as client:
            model = options.model or next((each.name for each in client.models() if each.task == "rank"), "")
            if not model:
                return fail(options.prog, ValueError("no model there ranks: `make up ARGS=--rank` starts one"))
            ranked = client.rank(options.query, documents, model=model, top_n=options.top_n)
    except (TokenbatchError, ValueError, OSError) as error:
        return fail(options.prog, error)
    table = plain_table("score", "document", names=0)
    for each in ranked:
        table.add_row(f"{each.score:.4f}" if each.error is None else str(each.error), each.document)
    OUTPUT.print(table)
    return LOST if any(each.error for each in ranked) else 0
