"""P1 and P2 on this machine: aggregator and model server beside vLLM's own server, and TEI if it is installed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from loadtest.bench.asked import Asked, asked
from loadtest.bench.callers import Load, Turn
from loadtest.bench.figures import Figure
from loadtest.bench.peers import tei
from loadtest.bench.processor import LIMIT, Used, threads_s
from loadtest.bench.records import kafka_through
from loadtest.bench.setting import Plan, backlog
from loadtest.bench.sides import OpenAI, Ours, Servers, Side, Theirs, awake, both_servers, paused, ratio, timed, usual
from loadtest.bench.turns import Medians
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.service import without_kafka

NAME = "gpu"
CALLERS = (64, 256)
_TURN_S = 4.0
_CLIENT_CALLERS, _CLIENT_TOKENS = 64, 12
_EMBEDDINGS = "/v1/embeddings"
_RATIOS = ("http_over_vllm", *(f"over_{peer}_{callers}" for peer in ("vllm", "tei") for callers in CALLERS))


def measure(plan: Plan, batches: Sequence[int]) -> list[Figure]:
    """All on the same servers, one after the other. `batches`: texts a call that P2's plain consumer tries."""
    with backlog(plan) as setting, both_servers(plan) as servers, paused(servers.vllm) as vllm:
        figures = _front_door(plan, servers, vllm)
        figures += kafka_through.through(setting, servers, batches)
    return figures


def _front_door(plan: Plan, servers: Servers, vllm: Theirs) -> list[Figure]:
    """P1 by gRPC, and over HTTP by the client of vLLM."""
    server = servers.server
    aggregator = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=[server.address])
    with aggregator, ExitStack() as stack:
        sides: dict[str, Side] = {"ours": Ours(aggregator, server, servers.dtype), "vllm": vllm}
        if (server_of_tei := tei(plan.folder)) is not None:
            sides["tei"] = OpenAI(stack.enter_context(server_of_tei))
        kinds = {f"{name}_{callers}": (side, Load(callers)) for callers in CALLERS for name, side in sides.items()}
        turns = timed(NAME, plan, kinds, _TURN_S)
        with asked(["loadtest.bench.programs.vllm_client"], plan.folder / "vllm_client.log") as client:
            clients = {"ours_http": _bench_serve(client, plan, aggregator.http_address)}
            with awake(servers.vllm):
                clients["vllm_http"] = _bench_serve(client, plan, servers.vllm.address)
    return _figures(plan, turns, clients, servers.dtype)


def _bench_serve(client: Asked, plan: Plan, address: str) -> tuple[float, Used]:
    """Requests a second of `vllm bench serve` with random queries, and its cores. Raises StackError."""
    count = max(_CLIENT_CALLERS, round(plan.turn_share * 10_000))
    told = {
        "backend": "openai-embeddings",
        "base-url": f"http://{address}",
        "endpoint": _EMBEDDINGS,
        "model": MODEL,
        "tokenizer": str(tokenizer_folder()),
        "dataset-name": "random",
        "random-input-len": str(_CLIENT_TOKENS),
        "num-prompts": str(count),
        "max-concurrency": str(_CLIENT_CALLERS),
    }
    before, began_s = threads_s(client.pid), time.monotonic()
    found = client.ask(["--disable-tqdm", *(part for name, value in told.items() for part in (f"--{name}", value))])
    if found["completed"] != count:
        raise StackError(f"vllm bench serve completed {found['completed']} of {count} requests")
    return float(found["request_throughput"]), Used.between(before, threads_s(client.pid), time.monotonic() - began_s)


def _figures(
    plan: Plan, turns: Mapping[str, Sequence[Turn]], clients: Mapping[str, tuple[float, Used]], dtype: str
) -> list[Figure]:
    medians = Medians(NAME, plan.repeats, f"MiniLM {dtype}, one query a call", dict.fromkeys(_RATIOS, "≥ 1.0"))
    peers = [name.split("_") for name in turns if not name.startswith("ours")]
    for name, (rate, used) in clients.items():
        mark = f" (MARKED: a thread of it is above {LIMIT} cores)" if used.at_limit else ""
        ERRORS.print(f"vllm bench serve: {name} {rate:,.0f}/s{mark}", highlight=False)
    return [
        *usual(turns, medians),
        *(
            ratio(medians, turns, f"over_{peer}_{callers}", (f"ours_{callers}", f"{peer}_{callers}"))
            for peer, callers in peers
        ),
        *(medians.of(f"{name}_bench_serve", "query/s", [rate]) for name, (rate, _) in clients.items()),
        *(medians.of(f"{name}_bench_serve_thread", "cores", [used.busiest]) for name, (_, used) in clients.items()),
        medians.ratio("http_over_vllm", [clients["ours_http"][0]], [clients["vllm_http"][0]]),
    ]
