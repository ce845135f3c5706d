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
from typing import Any

from tokenbatch_client import TokenbatchError

from loadtest.kit.grpc import GrpcRun, GrpcRunError
from loadtest.kit.kafka import KafkaRun, KafkaRunError
from loadtest.kit.redis import RedisRunError, through_redis
from loadtest.options import FAILED, LOST, add_client_option, fail, positive, positive_int
from loadtest.questions import bundled_questions, different
from loadtest.screen import OUTPUT, duration
from loadtest.stack.addresses import DEFAULT_FOLDER, Addresses, forget, only_one
from loadtest.stack.errors import StackError
from loadtest.stack.service import gpu_present, split_pair
from loadtest.stack.stack import Stack, StackPlan, Stages
from loadtest.texts import sample as texts
from loadtest.texts.minilm_ranker import minilm_ranker
from loadtest.texts.smollm2 import smollm2
from loadtest.up.batch import cost_table, run_batch
from loadtest.up.demo import DAY_S, DEMO_SERVERS, Demo, outcomes_table
from loadtest.up.ranking import orders_table, rank
from loadtest.up.retrieval import Service, loops_table, retrieve, runs_table, turns
from loadtest.up.sample import budgets_note, measure_gain, neighbours_table, passages_table, take_sample

_QUESTIONS, _ASKED, _INDEXED, _LOOPS, _RANKED_AMONG = 200, 20, 200, 2, 1000
_IN_A_BATCH = 3600
_WATCH_S = 0.5
_INTERRUPTED = 130
_SERVING = "\n[bold]Serving.[/] From another terminal, in this folder:\n"
_HOW_TO = """
  questions through Kafka  {python} -m loadtest produce --bootstrap {kafka} --count 1000
  questions through gRPC   {python} -m loadtest embed --target {grpc} --count 1000
  questions through HTTP   curl http://{http}/v1/embeddings -d '{{"input": "who wrote hamlet"}}'
  a question of your own   echo 'who wrote hamlet' | {python} -m loadtest embed --target {grpc} --file /dev/stdin

Add --out replies.npz to keep the vectors.
"""
_HOW_TO_REDIS = """
A question through Redis, and its reply at a list:

  redis-cli -p {redis_port} XADD embed.requests.v1 '*' value 'who wrote hamlet' content-type text/plain reply_to list:me
  redis-cli -p {redis_port} BLPOP me 10
"""
_HOW_TO_GENERATE = (
    """
  a text through HTTP      curl http://{http}/v1/completions -d '{{"model": "{model}", "prompt": "The sky is"}}'
  a chat, streamed         curl -N http://{http}/v1/chat/completions -d '{{"model": "{model}", "stream": true, """
    """"messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

Over gRPC call generation.v1.Generation/Generate at {grpc} (docs/clients.md); through Kafka at {kafka} send requests to
generate.requests.v1 and read replies on generate.replies.v1.
"""
)
_WHERE = """
The live page is at {page}, metrics at http://{metrics}/metrics, logs in {logs}, addresses in
{addresses}. Ctrl-C stops everything.
"""
_HOW_TO_RANK = """
Documents ranked over HTTP (README.md, docs/clients.md has gRPC, Kafka and Redis):

  curl http://{http}/v1/rerank -d '{{"model": "{ranker}", "query": "who wrote hamlet", "documents": ["Bacon", "rain"]}}'
"""
_HOW_TO_BATCH = """
Files of requests (docs/batches.md), for OpenAI's client with base_url http://{http}/v1:

  curl http://{http}/v1/files -F purpose=batch -F file=@requests.jsonl
"""
_SHOWN = {
    "batch": _SERVING + _HOW_TO + _HOW_TO_BATCH + _WHERE,
    "": _SERVING + _HOW_TO + _WHERE,
    "rank": _SERVING + _HOW_TO + _HOW_TO_RANK + _WHERE,
    "generate": _SERVING + _HOW_TO_GENERATE + _WHERE,
    "both": _SERVING + _HOW_TO + _HOW_TO_GENERATE + _WHERE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exit", action="store_true", help="stop after the questions; 0 if every one got its vector")
    parser.add_argument(
        "--data-dir", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="data, logs, stack.json (%(default)s)"
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="your own Kafka, instead of one started here")
    parser.add_argument(
        "--redis",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="read Redis streams too: your own Redis, or one started here if redis-server is installed",
    )
    add_client_option(parser)
    tasks = parser.add_mutually_exclusive_group()
    tasks.add_argument(
        "--generate",
        action="store_true",
        help="generate answers to questions, with SmolLM2 unless --model-path is given",
    )
    tasks.add_argument(
        "--mixed",
        action="store_true",
        help="embed and generate on one server, and compare it with a split pair: SmolLM2 unless --model-path is given",
    )
    tasks.add_argument(
        "--rank",
        action="store_true",
        help="find a question's neighbours by their vectors, and rank them with a model made of the bundled one",
    )
    tasks.add_argument(
        "--batch",
        action="store_true",
        help=f"embed {_IN_A_BATCH:,} questions as a file, by OpenAI's Batch API, and say what that cost",
    )
    tasks.add_argument(
        "--demo",
        nargs="?",
        type=positive,
        const=DAY_S,
        metavar="SECONDS",
        help="a minute to watch on the live page: a day's load with a burst, a slow model server and a killed one; the"
        " servers compute nothing, and their steps take time",
    )
    parser.add_argument(
        "--users", type=positive_int, default=64, metavar="N", help="of the retrieval loop of --mixed (%(default)s)"
    )
    parser.add_argument("--model-path", default="", metavar="DIR|NAME", help="your own model: a folder or a hub name")
    group = parser.add_argument_group("ports; the defaults if they are free, otherwise any")
    for name, usual in (("kafka", 9092), ("grpc", 50051), ("http", 8000), ("metrics", 9464), ("modelserver", 50061)):
        group.add_argument(f"--{name}-port", type=int, metavar="PORT", help=f"instead of {usual}")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when something was lost or went wrong later, 2 when it could not start."""
    plan = StackPlan(
        folder=options.data_dir,
        kafka=options.kafka,
        redis=options.redis,
        kafka_port=options.kafka_port,
        grpc_port=options.grpc_port,
        http_port=options.http_port,
        metrics_port=options.metrics_port,
        modelserver_port=options.modelserver_port,
        model_path=options.model_path,
        batches=options.batch,
        task="both" if options.mixed else "generate" if options.generate else "",
        **(DEMO_SERVERS if options.demo else {}),
    )
    try:
        if plan.task and not options.model_path:
            plan = replace(plan, model_path=str(smollm2(on_progress=_tell)))
        if options.rank:
            plan = replace(plan, ranker=str(minilm_ranker(on_progress=_tell)))
        with only_one(plan.folder):
            session = _Session(
                plan, dict(options.client), options.users, prog=options.prog, stay=not options.exit, demo_s=options.demo
            )
            return session.run()
    except StackError as error:
        return fail(options.prog, error)


def _tell(what: str) -> None:
    OUTPUT.print(f"==> {what}")


class _Session:
    """One stack from its start to its stop."""

    def __init__(
        self, plan: StackPlan, client: Mapping[str, Any], users: int, *, prog: str, stay: bool, demo_s: float | None
    ) -> None:
        self._plan = plan
        self._client = client
        self._users = users
        self._prog = prog
        self._stay = stay
        self._demo_s = demo_s
        self._shown = "batch" if plan.batches else "rank" if plan.ranker else plan.task
        self._stages = Stages(OUTPUT)
        self._stack = Stack(plan, self._stages)

    def run(self) -> int:
        """The exit code."""
        code = FAILED
        try:
            code = self._start_and_serve()
        except (StackError, KafkaRunError, RedisRunError, GrpcRunError, TokenbatchError, OSError) as error:
            fail(self._prog, error)
        except KeyboardInterrupt:
            code = _INTERRUPTED
        finally:
            complaints = self._stop()
        return code or (LOST if complaints else 0)

    def _start_and_serve(self) -> int:
        OUTPUT.print(f"==> the live page: {self._stack.addresses.page} (once the aggregator serves)", markup=False)
        with self._stages:
            for sentence in self._stack.moved:
                OUTPUT.print(f"==> {sentence}", markup=False)
            self._stack.start()
        self._stack.addresses.write(self._plan.folder)
        embeds = self._show_sample if self._demo_s is None else self._show_demo
        shows = {
            "": embeds,
            "rank": self._show_ranking,
            "batch": self._show_batch,
            "generate": self._show_texts,
            "both": self._show_retrieval,
        }
        code = 0 if shows[self._shown](self._stack.addresses) else LOST
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

    def _show_retrieval(self, addresses: Addresses) -> bool:
        """Users retrieve on the mixed server, then on a split pair: True. Raises StackError when a call fails."""
        questions = bundled_questions()
        documents, asked = questions[:_INDEXED], different(questions[_INDEXED:], self._users)
        OUTPUT.print(f"\n{self._users} users retrieve among {_INDEXED} real questions, {_LOOPS} loops each")
        model = self._stack.model
        mixed = Service("one mixed server", addresses.grpc, model, model)
        runs = [retrieve(mixed, asked, documents, _LOOPS)]
        OUTPUT.print(loops_table(runs[0].retrievals[0]))
        if gpu_present():
            OUTPUT.print("The split pair is left out: each of its servers would need a GPU of its own.")
        else:
            OUTPUT.print("Starting a split pair: one server embeds, the other one generates, each on half of the cores")
            with split_pair(self._plan.folder, self._plan.model_path) as pair:
                split = Service("a split pair", pair.address, pair.embeds, pair.generates)
                left = turns(mixed, split)[1:]
                OUTPUT.print(f"{len(left)} more runs, in turns: about {duration(len(left) * runs[0].seconds)}")
                runs += [retrieve(service, asked, documents, _LOOPS) for service in left]
        OUTPUT.print(runs_table(runs))
        return True

    def _show_ranking(self, addresses: Addresses) -> bool:
        """Whether every question got its vector, and every neighbour its score."""
        OUTPUT.print(f"\nEmbedding {_RANKED_AMONG:,} real questions, and ranking the ten nearest to some of them")
        questions = bundled_questions()[:_RANKED_AMONG]
        models = [server.model for server in self._stack.model_servers]
        rankings = rank(questions, addresses.grpc, embeds=models[0], ranks=models[-1])
        OUTPUT.print(orders_table(rankings))
        OUTPUT.print(
            f"The ranker, {models[-1]}, is made of the bundled MiniLM to show the path, and is no published"
            " cross-encoder: it takes one year for another, so the questions above name none. For better orders set its"
            " server's MODEL__PATH to one (docs/models.md)."
        )
        return bool(rankings)

    def _show_batch(self, addresses: Addresses) -> bool:
        """Whether every question of a file got its vector, once."""
        questions = bundled_questions()[:_IN_A_BATCH]
        OUTPUT.print(f"\nEmbedding {len(questions):,} real questions as a file, by OpenAI's Batch API")
        run = run_batch(addresses.http, addresses.metrics, questions)
        OUTPUT.print(cost_table(run))
        return run.is_whole

    def _show_sample(self, addresses: Addresses) -> bool:
        OUTPUT.print(f"\nEmbedding {_QUESTIONS} real questions through Kafka and through gRPC")
        through_kafka = KafkaRun(bootstrap=addresses.kafka, client=self._client)
        questions = bundled_questions()[:_QUESTIONS]
        through_grpc = GrpcRun(addresses.grpc)
        sample = take_sample(questions, through_kafka, through_grpc, addresses.metrics)
        OUTPUT.print("Asking the same questions one by one, and all at once")
        OUTPUT.print(passages_table(sample, measure_gain(questions, through_grpc)))
        if note := budgets_note(sample):
            OUTPUT.print(note)
        if sample.complete:
            OUTPUT.print(neighbours_table(sample.questions, sample.embeddings))
        return sample.complete and (not addresses.redis or self._ask_redis(addresses.redis))

    def _ask_redis(self, address: str) -> bool:
        """Whether every question got its vector through Redis."""
        questions = bundled_questions()[:_ASKED]
        answered = through_redis(address, questions)
        OUTPUT.print(f"Through Redis {answered} of {len(questions)} questions got their vectors")
        return answered == len(questions)

    def _show_demo(self, addresses: Addresses) -> bool:
        """Whether every question of the demonstration was answered."""
        assert self._demo_s is not None, "There is nothing to demonstrate. This is a bug."

        def show(text: str) -> None:
            OUTPUT.print(text, markup=False)

        demo = Demo(self._stack.model_servers, addresses, self._client, show, self._demo_s)
        outcomes = demo.run()
        OUTPUT.print(outcomes_table(outcomes))
        return not any(outcome.lost for outcome in outcomes)

    def _show_how_to(self, addresses: Addresses) -> None:
        shown = _SHOWN[self._shown] + (_HOW_TO_REDIS if addresses.redis else "")
        text = shown.format(
            python=_python(),
            model=self._stack.model,
            ranker=self._stack.model_servers[-1].model,
            redis_port=addresses.redis.rpartition(":")[2],
            kafka=addresses.kafka,
            grpc=addresses.grpc,
            http=addresses.http,
            metrics=addresses.metrics,
            page=addresses.page,
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
            fail(self._prog, error)
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


def _python() -> str:
    """The interpreter to call from this folder, in words for a shell."""
    executable = Path(sys.executable)
    here = Path.cwd()
    return shlex.quote(str(executable.relative_to(here) if executable.is_relative_to(here) else executable))
