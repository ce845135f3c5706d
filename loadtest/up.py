"""`loadtest up`: start all of tokenbatch here, show that it works, and serve until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from loadtest.clients.grpc import GrpcRun, GrpcRunError
from loadtest.clients.kafka import KafkaRun
from loadtest.clients.kafka_connection import KafkaRunError
from loadtest.options import FAILED, LOST, add_client_option, fail
from loadtest.questions import bundled_questions
from loadtest.sample import neighbours_table, passages_table, take_sample
from loadtest.screen import OUTPUT
from loadtest.stack.addresses import DEFAULT_FOLDER, Addresses, forget
from loadtest.stack.errors import StackError
from loadtest.stack.lock import only_one
from loadtest.stack.stack import Stack, StackPlan
from loadtest.stack.stages import Stages
from loadtest.texts import sample as texts
from loadtest.texts.smollm2 import smollm2

_QUESTIONS, _ASKED = 200, 20
_WATCH_S = 0.5
_INTERRUPTED = 130
_HOW_TO = """
[bold]Serving.[/] From another terminal, in this folder:

  questions through Kafka  {python} -m loadtest produce --bootstrap {kafka} --count 1000
  questions through gRPC   {python} -m loadtest embed --target {grpc} --count 1000
  a question of your own   echo 'who wrote hamlet' | {python} -m loadtest embed --target {grpc} --file /dev/stdin

Add --out replies.npz to keep the vectors. Metrics are at http://{metrics}/metrics, logs in {logs},
addresses in {addresses}. Ctrl-C stops everything.
"""

_HOW_TO_TEXTS = """
[bold]Serving.[/] generation.v1.Generation/Generate at {grpc} (README.md, docs/clients.md); Kafka at {kafka}:
requests to generate.requests.v1, replies on generate.replies.v1.

Metrics are at http://{metrics}/metrics, logs in {logs}, addresses in {addresses}. Ctrl-C stops everything.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--exit", action="store_true", help="stop after the questions; 0 if every one got its vector")
    parser.add_argument(
        "--data-dir", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="data, logs, stack.json (%(default)s)"
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="your own Kafka, instead of one started here")
    add_client_option(parser)
    parser.add_argument(
        "--generate",
        action="store_true",
        help="generate answers to questions, with SmolLM2 unless --model-path is given",
    )
    parser.add_argument("--model-path", default="", metavar="DIR|NAME", help="your own model: a folder or a hub name")
    group = parser.add_argument_group("ports; the defaults if they are free, otherwise any")
    for name, usual in (("kafka", 9092), ("grpc", 50051), ("metrics", 9464), ("modelserver", 50061)):
        group.add_argument(f"--{name}-port", type=int, metavar="PORT", help=f"instead of {usual}")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when something was lost or went wrong later, 2 when it could not start."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    plan = StackPlan(
        folder=options.data_dir,
        kafka=options.kafka,
        kafka_port=options.kafka_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        modelserver_port=options.modelserver_port,
        model_path=options.model_path,
        generates=options.generate,
    )
    try:
        if options.generate and not options.model_path:
            folder = smollm2(on_progress=lambda told: OUTPUT.print(f"==> {told}"))
            plan = replace(plan, model_path=str(folder))
        with only_one(plan.folder):
            return _Session(plan, dict(options.client), stay=not options.exit).run()
    except StackError as error:
        return fail("up", error)


class _Session:
    """One stack from its start to its stop."""

    def __init__(self, plan: StackPlan, client: Mapping[str, Any], *, stay: bool) -> None:
        self._plan = plan
        self._client = client
        self._stay = stay
        self._stages = Stages(OUTPUT)
        self._stack = Stack(plan, self._stages)

    def run(self) -> int:
        """The exit code."""
        code = FAILED
        try:
            code = self._start_and_serve()
        except (StackError, KafkaRunError, GrpcRunError, OSError) as error:
            fail("up", error)
        except KeyboardInterrupt:
            code = _INTERRUPTED
        finally:
            complaints = self._stop()
        return code or (LOST if complaints else 0)

    def _start_and_serve(self) -> int:
        with self._stages:
            for sentence in self._stack.moved:
                OUTPUT.print(f"==> {sentence}", markup=False)
            self._stack.start()
        self._stack.addresses.write(self._plan.folder)
        show = self._show_texts if self._plan.generates else self._show_sample
        code = 0 if show(self._stack.addresses) else LOST
        if self._stay:
            self._show_how_to(self._stack.addresses)
            code = self._serve() or code
        return code

    def _show_texts(self, addresses: Addresses) -> bool:
        """Whether every question got a text, by every way."""
        questions = bundled_questions()[:_ASKED]
        OUTPUT.print(f"\nAnswering {_ASKED} real questions over gRPC, through Kafka, and one by one; the first one:")
        OUTPUT.print(f"\n[bold]{questions[0]}[/]")

        def show(text: str) -> None:
            OUTPUT.print(text, end="", markup=False, highlight=False)

        passages = texts.take(questions, addresses.grpc, addresses.kafka, show, self._client)
        OUTPUT.print(texts.texts_table(passages))
        OUTPUT.print(texts.ways_table(passages))
        return all(answer.text for passage in passages for answer in passage.answers)

    def _show_sample(self, addresses: Addresses) -> bool:
        OUTPUT.print(f"\nEmbedding {_QUESTIONS} real questions through Kafka and through gRPC")
        through_kafka = KafkaRun(bootstrap=addresses.kafka, client=self._client)
        questions = bundled_questions()[:_QUESTIONS]
        sample = take_sample(questions, through_kafka, GrpcRun(addresses.grpc), addresses.metrics)
        OUTPUT.print(passages_table(sample))
        if sample.complete:
            OUTPUT.print(neighbours_table(sample.questions, sample.embeddings))
        return sample.complete

    def _show_how_to(self, addresses: Addresses) -> None:
        text = (_HOW_TO_TEXTS if self._plan.generates else _HOW_TO).format(
            python=_python(),
            kafka=addresses.kafka,
            grpc=addresses.grpc,
            metrics=addresses.metrics,
            logs=self._plan.folder / "logs",
            addresses=self._plan.folder / "stack.json",
        )
        OUTPUT.print(text, soft_wrap=True)

    def _serve(self) -> int:
        """Until Ctrl-C, or until a part ends."""
        try:
            while True:
                self._stack.check()
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return 0
        except StackError as error:
            fail("up", error)
            return LOST

    def _stop(self) -> list[str]:
        """Stop all in order; a further Ctrl-C ends all at once."""
        signal.signal(signal.SIGINT, lambda _number, _frame: self._stack.kill())
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._stack.kill())
        OUTPUT.print("Stopping: the aggregator finishes what it has, then the model server, then Kafka")
        forget(self._plan.folder)
        complaints = self._stack.stop()
        for complaint in complaints:
            OUTPUT.print(complaint, style="yellow", markup=False)
        OUTPUT.print("Stopped")
        return complaints


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _python() -> str:
    """The interpreter to call from this folder, in words for a shell."""
    executable = Path(sys.executable)
    here = Path.cwd()
    return shlex.quote(str(executable.relative_to(here) if executable.is_relative_to(here) else executable))
