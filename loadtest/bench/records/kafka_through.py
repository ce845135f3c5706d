"""P2: questions from Kafka to Kafka, beside a plain consumer of vLLM's own server, and beside the engine alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.bench.asked import asked
from loadtest.bench.figures import Figure
from loadtest.bench.peers import Peer
from loadtest.bench.setting import REQUESTS, Plan, Progress, Setting, backlog, mean_tokens, texts
from loadtest.bench.sides import Servers, awake, both_servers, paused
from loadtest.bench.turns import Medians, in_turns
from loadtest.screen import ERRORS
from loadtest.stack.part import Program

NAME = "P2"
_BATCHES = (32, 64, 128, 256)
"""Texts of a call, of which the plain consumer's best is found first."""
_ENGINE_TOKENS = 4096
"""Of the engine's steps: what both servers' steps may hold."""
_ENGINE_STEPS = 20
_BOUNDS = {"over_plain": "≥ 2.5", "over_one_a_call": "≥ 7", "over_engine": "≥ 0.75"}
_TRIAL, _PLAIN, _ONE_A_CALL = 0.1, 0.4, 0.08
"""Shares of the backlog that slower ones read: the plain consumer in a trial, in its turn, and with one text a call."""


def measure(plan: Plan) -> list[Figure]:
    """All in turns, each reading the full topic with a new process; vLLM's server is stopped while others work."""
    with backlog(plan) as setting, both_servers(plan) as servers, paused(servers.vllm):
        return through(setting, servers)


def through(setting: Setting, servers: Servers, batches: Sequence[int] = _BATCHES) -> list[Figure]:
    """The same with servers that run; `batches`: texts a call to try."""
    plan, server, vllm = setting.plan, servers.server, servers.vllm
    tokens = round(mean_tokens(texts(plan.queries)))
    engine_queries = _ENGINE_TOKENS // tokens
    forward = ["loadtest.bench.programs.engine_forward", "--queries", str(engine_queries), "--tokens", str(tokens)]
    with asked(forward, plan.folder / "forward.log") as engine:
        engine.seconds(_ENGINE_STEPS)
        trials = {batch: _plain(setting, vllm, batch, int(_TRIAL * plan.queries)) for batch in batches}
        best = max(trials, key=lambda batch: trials[batch])
        said = ", ".join(f"{batch}: {rate:.0f}/s" for batch, rate in trials.items())
        ERRORS.print(f"P2 plain consumer by texts a call: {said}")
        some, few = int(_PLAIN * plan.queries), int(_ONE_A_CALL * plan.queries)
        sides: dict[str, Callable[[int], float]] = {
            "ours": lambda _: _ours(setting, server.address),
            "plain": lambda _: _plain(setting, vllm, best, some),
            "one_a_call": lambda _: _plain(setting, vllm, 1, few),
            "engine": lambda _: _ENGINE_STEPS * engine_queries / engine.seconds(_ENGINE_STEPS),
        }
        found = in_turns(NAME, plan.repeats, sides, "{:.0f}/s".format)
    notes = {
        "ours": f"{plan.queries} unique questions, {servers.dtype}",
        "plain": f"plain consumer of vLLM's server, {best} texts a call",
        "one_a_call": "plain consumer of vLLM's server, 1 text a call",
        "engine": f"steps of {engine_queries} × {tokens} tokens, {engine.engine}",
    }
    medians = Medians(NAME, plan.repeats, "", _BOUNDS)
    return [
        *(medians.of(f"{name}_throughput", "query/s", rates, notes[name]) for name, rates in found.items()),
        *(
            medians.ratio(f"over_{name}", found["ours"], found[name], notes[name])
            for name in ("plain", "one_a_call", "engine")
        ),
    ]


def _ours(setting: Setting, server: str) -> float:
    replies = setting.replies_topic()
    return rate(setting.run(setting.aggregator([server], replies), replies, setting.plan.queries))


def _plain(setting: Setting, vllm: Peer, batch: int, count: int) -> float:
    replies = setting.replies_topic()
    where = ["--bootstrap", setting.bootstrap, "--url", vllm.url, "--requests", REQUESTS, "--replies", replies]
    log = setting.plan.folder / "plain_consumer.log"
    program = Program("loadtest.bench.programs.plain_consumer", [*where, "--batch", str(batch)], log)
    with awake(vllm):
        return rate(setting.run(program, replies, count))


def rate(looks: Sequence[Progress]) -> float:
    """Replies a second from the first look that found some: the first batch, whose start nobody saw, does not count."""
    first = next(look for look in looks if look.replies)
    last = looks[-1]
    assert last.replies > first.replies, "The run was too short to be looked at twice: measure more queries."
    return (last.replies - first.replies) / (last.at_s - first.at_s)
