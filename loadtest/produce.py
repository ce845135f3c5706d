"""`loadtest produce`: send queries through Kafka and collect the replies."""

from __future__ import annotations

import argparse
import asyncio

from tokenbatch_client.kafka import REPLIES, REQUESTS

from loadtest.kit import kafka
from loadtest.kit.formats import Format
from loadtest.kit.kafka import KafkaRun, KafkaRunError
from loadtest.options import (
    add_client_option,
    add_input_options,
    add_output_options,
    fail,
    finish,
    positive,
    request_options,
    texts_to_send,
)
from loadtest.screen import exchange_bars
from loadtest.stack.addresses import running_stack
from loadtest.stack.kafka import BACKGROUND_TOPIC


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to")
    group.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka's; absent: that of the stack running here")
    group.add_argument(
        "--request-topic",
        metavar="T",
        help=f"{REQUESTS} when absent, and {BACKGROUND_TOPIC} for --priority background: Kafka hands out a"
        " topic's records in their order, so bulk in the topic of urgent requests makes these wait",
    )
    group.add_argument("--reply-topic", default=REPLIES, metavar="T", help="requests name it if it is not %(default)s")
    add_client_option(parser)
    add_input_options(parser)
    group = parser.add_argument_group("how")
    group.add_argument("--format", type=Format, choices=list(Format), default=Format.PROTOBUF)
    group.add_argument(
        "--rate", type=positive, metavar="R", help="queries per second; when absent, as many as possible"
    )
    group.add_argument(
        "--timeout-s",
        type=positive,
        default=60.0,
        metavar="S",
        help="give up when no reply has come for so long (%(default)s)",
    )
    group.add_argument(
        "--linger-s",
        type=positive,
        default=0.5,
        metavar="S",
        help="read on for so long after the last reply, for duplicates (%(default)s)",
    )
    add_output_options(parser)


def request_topic(priority: str) -> str:
    """The topic that `make up` reads for requests of this class."""
    return BACKGROUND_TOPIC if priority == "background" else REQUESTS


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when a query failed or got no reply, 2 when it could not be done."""
    if options.format is Format.TEXT and (options.model or options.priority or options.input_type):
        wrong = "a plain text carries neither --model, --priority nor --input-type: use another --format"
        return fail(options.prog, ValueError(wrong))
    try:
        texts, tally = texts_to_send(options)
        plan = KafkaRun(
            bootstrap=options.bootstrap or running_stack().kafka,
            request_topic=options.request_topic or request_topic(options.priority),
            reply_topic=options.reply_topic,
            style=options.format,
            options=request_options(options),
            rate=options.rate,
            timeout_s=options.timeout_s,
            linger_s=options.linger_s,
            client=dict(options.client),
        )
        with exchange_bars(tally) as move:
            asyncio.run(kafka.run(texts, tally, plan, move))
    except (KafkaRunError, ValueError, OSError) as error:
        return fail(options.prog, error)
    return finish(f"Through Kafka at {plan.bootstrap}", tally, options)
