"""Conversations on servers that keep prefixes: what two rules of the production dispatcher are worth, in virtual time.

Each user asks, reads the answer, thinks, and asks again with all that was said before. A server keeps the keys and
values of the beginnings that it computed last, and computes what it lacks of a prompt. `by prefix`: of servers that
are about as quick, a prompt goes to the one that had its beginning. `at once`: a server is sent its share of the
prompts that wait, not a budget of tokens at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np
from typing_extensions import override

from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority, Query
from loadtest.lab.generation.lengths_vary import CURVE
from protos.modelserver.v1.curve import Curve, Rule

_SERVERS, _SEATS, _KV_TOKENS, _STEP_TOKENS = 4, 64, 60_000, 2048
_BUDGET = 512
"""Tokens of a batch where prompts are not sent at once."""
_TURNS, _THINK_S = 8, 6.0
_FIRST, _ASK, _ANSWER = 600, 60, 100
"""Tokens of a conversation's beginning, of what a user adds each time, and of an answer."""
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Load:
    """This many users, who come one by one, or all at the same moment; these ask once."""

    users: int
    together: bool = False


LOADS = (Load(40), Load(160), Load(320), Load(64, together=True))


@dataclass(frozen=True, slots=True)
class Found:
    """First tokens in seconds, and the share of the prompts' tokens that were computed and not found."""

    first_p50_s: float
    first_p99_s: float
    tokens_per_s: float
    computed: float


def converse(load: Load, *, by_prefix: bool, at_once: bool, seed: int = 1) -> Found:
    """All users' conversations, to their ends."""
    return _Talk(by_prefix=by_prefix, at_once=at_once, seed=seed).run(load)


class _InParts(GeneratingReplica):
    """Takes no more prompts at a time than its budget."""

    @override
    def batch_tokens(
        self, queued_tokens: int, backlog_tokens: int = 0, within_s: float = 0.0, share_tokens: int = 0
    ) -> int:
        return super().batch_tokens(queued_tokens, backlog_tokens, within_s, 0)


@dataclass(eq=False)
class _User:
    number: int
    turns: int = 0
    said: int = _FIRST
    asked_s: float = 0.0

    @property
    def prompt(self) -> bytes:
        return (np.arange(self.said, dtype="<i4") + 100_000 * self.number).tobytes()


@dataclass(eq=False)
class _Text:
    user: _User
    batch: Batch
    left: int
    answer: int
    new: int = 0


@dataclass(eq=False)
class _Server:
    replica: GeneratingReplica
    texts: list[_Text] = field(default_factory=list[_Text])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    known: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    busy: bool = False

    def keep(self, user: _User) -> None:
        """Its keys and values stay until others need the room."""
        self.known[user.number] = user.said
        self.known.move_to_end(user.number)
        while sum(self.known.values()) > _KV_TOKENS:
            self.known.popitem(last=False)


class _Talk:
    def __init__(self, *, by_prefix: bool, at_once: bool, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        policy = replace(DispatchPolicy(), queue=QueuePolicy(coalesce=False), by_prefix=by_prefix)
        self._dispatcher = Dispatcher("m", policy)
        self._servers: dict[str, _Server] = {}
        kind = GeneratingReplica if at_once else _InParts
        curve = Curve(0.0, CURVE.fixed_s, CURVE.per_prompt_token_s, _BUDGET, Rule.THROUGHPUT, _STEP_TOKENS)
        for number in range(_SERVERS):
            name = f"server-{number}"
            server = kind(
                name,
                curve,
                _BUDGET,
                ReplicaPolicy(),
                kv_tokens=_KV_TOKENS,
                max_sequences=_SEATS,
                per_sequence_s=CURVE.per_request_s,
                capacity=_STEP_TOKENS,
            )
            self._dispatcher.replicas[name] = server
            self._servers[name] = _Server(server)
        self._events: list[tuple[float, int, _User | _Server | None]] = []
        self._order = count()
        self._first_s: list[float] = []
        self._prompt_tokens = self._computed = self._new = 0

    def run(self, load: Load) -> Found:
        for number in range(load.users):
            turns = _TURNS - 1 if load.together else 0
            self._at(0.0 if load.together else float(self._rng.exponential(_THINK_S)), _User(number, turns))
        now_s = 0.0
        while self._events:
            now_s, _, what = heappop(self._events)
            if isinstance(what, _User):
                what.asked_s = now_s
                query = Query(what, 0, Priority.DEFAULT, "", now_s, inf)
                self._dispatcher.queue.put(query, what.prompt, what.said)
            elif isinstance(what, _Server):
                self._ended(what, now_s)
            self._dispatch(now_s)
        first_p50_s, first_p99_s = (float(each) for each in np.percentile(self._first_s, [50, 99]))
        return Found(first_p50_s, first_p99_s, self._new / now_s, self._computed / self._prompt_tokens)

    def _at(self, time_s: float, what: _User | _Server | None) -> None:
        heappush(self._events, (time_s, next(self._order), what))

    def _dispatch(self, now_s: float) -> None:
        due = self._dispatcher.due(now_s, max_items=256)
        for batch in due.batches:
            server = self._servers[batch.replica.name]
            for text in self._begun(batch, server):
                server.texts.append(text)
            server.waiting[batch.batch_id] = len(batch.items)
            self._step(server, now_s)
        if now_s < due.wake_s < inf:
            self._at(due.wake_s, None)

    def _begun(self, batch: Batch, server: _Server) -> Iterator[_Text]:
        for item in batch.items:
            query = item.waiters[0]
            user, query.item = query.owner, None
            assert isinstance(user, _User)
            known = min(server.known.get(user.number, 0), user.said - 1) // _BLOCK * _BLOCK
            self._prompt_tokens += user.said
            self._computed += user.said - known
            server.replica.began()
            yield _Text(user, batch, user.said - known, max(1, int(self._rng.exponential(_ANSWER))))

    def _step(self, server: _Server, now_s: float) -> None:
        """Begin one, if none runs and there is work."""
        if server.busy or not server.texts:
            return
        decoding = sum(not text.left for text in server.texts)
        room = prompt = max(0, _STEP_TOKENS - decoding)
        for text in server.texts:
            part = min(text.left, room)
            text.left -= part
            room -= part
        server.busy = True
        self._at(now_s + CURVE.time_s(decoding, prompt - room), server)

    def _ended(self, server: _Server, now_s: float) -> None:
        """Every text whose prompt is computed has one more token."""
        server.busy = False
        for text in [each for each in server.texts if not each.left]:
            text.new += 1
            self._new += 1
            if text.new == 1:
                self._first(server, text, now_s)
            if text.new >= text.answer:
                self._finished(server, text, now_s)
        running = len(server.texts)
        held = sum(text.user.said + text.new for text in server.texts)
        server.replica.observe_load(max(0, _KV_TOKENS - held), running)
        self._step(server, now_s)

    def _first(self, server: _Server, text: _Text, now_s: float) -> None:
        server.keep(text.user)
        self._first_s.append(now_s - text.user.asked_s)
        batch = text.batch
        server.waiting[batch.batch_id] -= 1
        if not server.waiting[batch.batch_id]:
            del server.waiting[batch.batch_id]
            replica = server.replica
            took_s = max(0.0, now_s - max(batch.packed_s, replica.first_tokens_s))
            replica.first_tokens_s = now_s
            self._dispatcher.done(batch, StepReport(batch.token_count, took_s, 0, 0.0, 0.0), now_s)

    def _finished(self, server: _Server, text: _Text, now_s: float) -> None:
        server.texts.remove(text)
        server.replica.finished()
        user = text.user
        user.said += text.new
        server.keep(user)
        user.said += _ASK
        user.turns += 1
        if user.turns < _TURNS:
            self._at(now_s + float(self._rng.exponential(_THINK_S)), user)
