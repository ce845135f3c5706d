"""`loadtest embed`: send queries through gRPC and collect the answers."""

from __future__ import annotations

import argparse
import asyncio

from loadtest.kit import grpc
from loadtest.kit.grpc import GrpcRun, GrpcRunError
from loadtest.options import (
    add_input_options,
    add_output_options,
    fail,
    finish,
    positive,
    positive_int,
    request_options,
    texts_to_send,
)
from loadtest.screen import exchange_bars
from loadtest.stack.addresses import running_stack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to")
    group.add_argument("--target", metavar="HOST:PORT", help="the aggregator's; absent: that of the stack running here")
    add_input_options(parser)
    group = parser.add_argument_group("how")
    group.add_argument(
        "--concurrency", type=positive_int, default=16, metavar="C", help="requests at a time (%(default)s)"
    )
    group.add_argument(
        "--per-call", type=positive_int, default=1, metavar="N", help="queries in a request (%(default)s)"
    )
    group.add_argument("--stream", action="store_true", help="all on one EmbedStream, instead of a call for each")
    group.add_argument(
        "--timeout-s", type=positive, default=60.0, metavar="S", help="deadline of a request (%(default)s)"
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when a query failed or got no answer, 2 when it could not be done."""
    try:
        texts, tally = texts_to_send(options)
        plan = GrpcRun(
            target=options.target or running_stack().grpc,
            concurrency=options.concurrency,
            per_call=options.per_call,
            options=request_options(options),
            timeout_s=options.timeout_s,
            stream=options.stream,
        )
        with exchange_bars(tally) as move:
            asyncio.run(grpc.run(texts, tally, plan, move))
    except (GrpcRunError, ValueError, OSError) as error:
        return fail(options.prog, error)
    return finish(f"Through gRPC at {plan.target}", tally, options)
