"""Chats on servers that keep prefixes, in virtual time: the production dispatcher sends prompts to generating engines.

Each user asks, reads the answer, thinks, and asks again with all that was said before. A prompt begins with the system
prompt of its application. A server keeps the keys and values of what it computed last, and computes the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority, Query
from aggregator.wings.generation.replica import GeneratingReplica, MeanLength, first_token_in_s
from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.generation.lengths_vary import CURVE

_SERVERS, _SEATS, _KV_TOKENS, _STEP_TOKENS, _BUDGET = 4, 64, 60_000, 2048, 512
_TURNS, _THINK_S, _MOST_S = 8, 6.0, 120.0
_ASK, _ANSWER = 60, 100
"""Tokens that a user adds each time, and of an answer in the mean."""
_APART = 100_000
"""Token ids of one user's chat, or of a system prompt, and of the next one's."""
_BLOCK = 32
"""Tokens of the cache's blocks: only whole ones are found again."""


@dataclass(frozen=True, slots=True)
class Chats:
    """`users` come one by one and have eight turns each; one who gets no token within `patience_s` asks again later.

    `applications`: how many system prompts of `system_tokens` they share; 0: each user's chat begins otherwise.
    """

    name: str
    users: int
    applications: int = 0
    system_tokens: int = 600
    patience_s: float = inf


CHATS = (
    Chats("chats", 160),
    Chats("chats-1-application", 160, applications=1),
    Chats("chats-32-applications", 50, applications=32, system_tokens=3000),
    Chats("chats-overload", 1000, system_tokens=32, patience_s=3.0),
)


@dataclass(frozen=True, slots=True)
class Chatted:
    """Seconds to first tokens, and to the news that there is none; answers a second.

    `goodput`: first tokens in time, a second; `in_time`: their share of what was asked. `computed`: the share of the
    prompts' tokens that no server had kept.
    """

    p50_s: float
    p99_s: float
    throughput: float
    goodput: float
    in_time: float
    refused_s: float
    computed: float


@dataclass(eq=False)
class _User:
    number: int
    system: bytes
    turns: int = 0
    said: int = 0
    asked_s: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.system) // 4 + self.said

    @property
    def prompt(self) -> bytes:
        return self.system + (np.arange(self.said, dtype="<i4") - _APART * (self.number + 1)).tobytes()


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
    kept: OrderedDict[int | bytes, int] = field(default_factory=OrderedDict[int | bytes, int])
    busy: bool = False

    def keep(self, user: _User) -> None:
        """Its keys and values stay until others need the room; those of a system prompt are kept once."""
        for key, tokens in ((user.number, user.said), (user.system, len(user.system) // 4)):
            self.kept[key] = tokens
            self.kept.move_to_end(key)
        while sum(self.kept.values()) > _KV_TOKENS:
            self.kept.popitem(last=False)

    def known(self, user: _User) -> int:
        system = self.kept.get(user.system, 0)
        known = system + self.kept.get(user.number, 0) if system else 0
        return min(known, user.tokens - 1) // _BLOCK * _BLOCK


class _Talk:
    def __init__(self, chats: Chats, without: AbstractSet[Mechanism], seed: int) -> None:
        self._chats = chats
        self._rng = np.random.default_rng(seed)
        self._refuses = Mechanism.FIRST_TOKEN_REFUSAL not in without
        by_prefix = Mechanism.PREFIX_AFFINITY not in without
        self._dispatcher = Dispatcher("m", DispatchPolicy(queue=QueuePolicy(coalesce=False), by_prefix=by_prefix))
        self._length = MeanLength()
        self._servers = {str(number): self._server(str(number)) for number in range(_SERVERS)}
        self._events: list[tuple[float, int, _User | _Server | None]] = []
        self._order = count()
        self._wake_s = inf
        self._first_s: list[float] = []
        self._refused_s: list[float] = []
        self._prompt_tokens = self._computed = self._answered = 0

    def _server(self, name: str) -> _Server:
        curve = Curve(0.0, CURVE.fixed_s, CURVE.per_prompt_token_s, _BUDGET, Rule.THROUGHPUT, _STEP_TOKENS)
        replica = GeneratingReplica(
            name,
            curve,
            _BUDGET,
            ReplicaPolicy(),
            kv_tokens=_KV_TOKENS,
            max_sequences=_SEATS,
            length=self._length,
            per_sequence_s=CURVE.per_request_s,
            capacity=_STEP_TOKENS,
        )
        self._dispatcher.replicas[name] = replica
        return _Server(replica)

    def run(self) -> Chatted:
        chats = self._chats
        for number in range(chats.users):
            application = number % chats.applications if chats.applications else number
            system = (np.arange(chats.system_tokens, dtype="<i4") + _APART * (application + 1)).tobytes()
            self._at(float(self._rng.exponential(_THINK_S)), _User(number, system, said=_ASK))
        now_s = 0.0
        while self._events and now_s < _MOST_S:
            now_s, _, what = heappop(self._events)
            if isinstance(what, _User):
                self._ask(what, now_s)
            elif isinstance(what, _Server):
                self._ended(what, now_s)
            self._dispatch(now_s)
        first_s = np.array(self._first_s)
        in_time = float(np.sum(first_s <= chats.patience_s))
        return Chatted(
            p50_s=float(np.percentile(first_s, 50)),
            p99_s=float(np.percentile(first_s, 99)),
            throughput=self._answered / now_s,
            goodput=in_time / now_s,
            in_time=in_time / (len(first_s) + len(self._refused_s)),
            refused_s=float(np.mean(self._refused_s)) if self._refused_s else 0.0,
            computed=self._computed / self._prompt_tokens,
        )

    def _at(self, time_s: float, what: _User | _Server | None) -> None:
        heappush(self._events, (time_s, next(self._order), what))

    def _ask(self, user: _User, now_s: float) -> None:
        user.asked_s = now_s
        queue, replicas = self._dispatcher.queue, self._dispatcher.replicas
        if self._refuses and self._chats.patience_s < inf:
            in_s = first_token_in_s(replicas.values(), len(queue), user.tokens, now_s)
            if in_s > self._chats.patience_s:
                self._refused(user, now_s)
                return
        query = Query(user, 0, Priority.DEFAULT, "", now_s, now_s + self._chats.patience_s)
        queue.put(query, user.prompt, user.tokens)

    def _refused(self, user: _User, now_s: float) -> None:
        self._refused_s.append(now_s - user.asked_s)
        self._at(now_s + float(self._rng.exponential(_THINK_S)), user)

    def _dispatch(self, now_s: float) -> None:
        due = self._dispatcher.due(now_s, max_items=256)
        for query in (*due.expired, *due.late):
            query.item = None
            self._refused(query.request, now_s)
        for batch in due.batches:
            server = self._servers[batch.replica.name]
            for item in batch.items:
                query = item.waiters[0]
                query.item = None
                server.texts.append(self._begun(query.request, batch, server))
            server.waiting[batch.batch_id] = len(batch.items)
            self._step(server, now_s)
        if now_s < due.wake_s < inf and due.wake_s != self._wake_s:
            self._wake_s = due.wake_s
            self._at(due.wake_s, None)

    def _begun(self, user: _User, batch: Batch, server: _Server) -> _Text:
        known = server.known(user)
        self._prompt_tokens += user.tokens
        self._computed += user.tokens - known
        server.replica.began()
        return _Text(user, batch, user.tokens - known, max(1, int(self._rng.exponential(_ANSWER))))

    def _step(self, server: _Server, now_s: float) -> None:
        """Begin one, if none runs and there is work: every text decodes, and prompts take what room is left."""
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
            if text.new == 1:
                self._first(server, text, now_s)
            if text.new >= text.answer:
                self._finished(server, text, now_s)
        systems = {text.user.system for text in server.texts}
        held = sum(map(len, systems)) // 4 + sum(text.user.said + text.new for text in server.texts)
        server.replica.observe_load(max(0, _KV_TOKENS - held), len(server.texts))
        self._step(server, now_s)

    def _first(self, server: _Server, text: _Text, now_s: float) -> None:
        server.keep(text.user)
        self._first_s.append(now_s - text.user.asked_s)
        batch, replica = text.batch, server.replica
        server.waiting[batch.batch_id] -= 1
        if not server.waiting[batch.batch_id]:
            del server.waiting[batch.batch_id]
            took_s = max(0.0, now_s - max(batch.packed_s, replica.first_tokens_s))
            replica.first_tokens_s = now_s
            self._dispatcher.done(batch, StepReport(batch.token_count, took_s, 0, 0.0, 0.0), now_s)

    def _finished(self, server: _Server, text: _Text, now_s: float) -> None:
        server.texts.remove(text)
        server.replica.finished()
        self._length.observe(text.new)
        self._answered += 1
        user = text.user
        user.said += text.new
        server.keep(user)
        user.said += _ASK
        user.turns += 1
        if user.turns < _TURNS:
            self._at(now_s + float(self._rng.exponential(_THINK_S)), user)


def converse(chats: Chats, without: AbstractSet[Mechanism] = frozenset(), seed: int = 1) -> Chatted:
    """All users' chats, to their ends."""
    return _Talk(chats, without, seed).run()
