"""One server in virtual time: what each step holds, how long it takes, and which requests it finishes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from heapq import heappop, heappush
from itertools import islice

from loadtest.lab.mixed.policies import Policy, Waiting
from modelserver.engines.engine import StepLoad
from modelserver.scheduler.step_limits import StepCost, StepTokens

NO_TARGET_S = 3600.0
"""A time between tokens that bounds no step."""


class Task(StrEnum):
    """What a request asks for."""

    EMBED = "embed"
    GENERATE = "generate"


@dataclass(eq=False, slots=True)
class Request:
    """`prompt_tokens` are those that are still to be computed; times in virtual seconds."""

    task: Task
    prompt_tokens: int
    new_tokens: int = 0
    arrived_s: float = 0.0
    first_s: float = -1.0


@dataclass(frozen=True, slots=True)
class Engine:
    """`cost` of a step, and the most that one may hold; `target_s` of the time between two tokens."""

    cost: StepCost
    step_tokens: int
    sequences: int
    target_s: float = NO_TARGET_S


class Apart(Enum):
    """A server that never mixes: a step that embeds, then one that generates, while both wait."""

    ALTERNATING = "alternating"


@dataclass(slots=True)
class Step:
    """One step: how long it takes, what it holds and finishes, and which generations get their first token.

    `left_tokens`: what sequences that decode left of it.
    """

    seconds: float
    decoding: int
    left_tokens: int
    embedding_tokens: int
    prompt_tokens: int
    finished: list[Request] = field(default_factory=list[Request])
    first: list[Request] = field(default_factory=list[Request])


class Server:
    """Runs one step after the other over what was put."""

    def __init__(self, engine: Engine, policy: Policy | Apart) -> None:
        self._cost = engine.cost
        self._sequences = engine.sequences
        self._most_tokens = engine.step_tokens
        self._step_tokens = StepTokens(engine.cost, engine.target_s, engine.step_tokens, engine.sequences)
        self._policy = policy
        self._embeds_next = True
        self._embeddings: deque[Request] = deque()
        self._prompts: deque[Request] = deque()
        self._decoding: list[tuple[int, int, Request]] = []  # the decode step after which it ends, order
        self._decode_steps = self._order = 0

    @property
    def has_work(self) -> bool:
        return bool(self._embeddings or self._prompts or self._decoding)

    @property
    def decoding(self) -> int:
        """Sequences that get a token in each step."""
        return len(self._decoding)

    def put(self, request: Request) -> None:
        (self._embeddings if request.task is Task.EMBED else self._prompts).append(request)

    def step(self) -> Step:
        """Compose the next step; call it only when the one before it is over."""
        embeds, generates = self._tasks()
        decoding = len(self._decoding) if generates else 0
        # Sequences that sit out a step, because it only embeds, have to wait for its end too.
        left = self._step_tokens.tokens(decoding) - decoding if self._decoding or self._prompts else self._most_tokens
        finished: list[Request] = []
        first: list[Request] = []
        embedding_tokens = prompt_tokens = 0
        if embeds:
            embedding_tokens = self._embed(self._for_embeddings(left, generates=generates), finished)
        if generates:
            prompt_tokens = self._read_prompts(left - embedding_tokens, first)
            self._decode(first, finished)
        seconds = self._cost.time_s(StepLoad(prompt_tokens, decoding, embedding_tokens))
        return Step(seconds, decoding, left, embedding_tokens, prompt_tokens, finished, first)

    def _tasks(self) -> tuple[bool, bool]:
        """Whether the next step embeds, and whether it generates."""
        generations = bool(self._prompts or self._decoding)
        if self._policy is not Apart.ALTERNATING or not (self._embeddings and generations):
            return bool(self._embeddings), generations
        embeds, self._embeds_next = self._embeds_next, not self._embeds_next
        return embeds, not embeds

    def _for_embeddings(self, left: int, *, generates: bool) -> int:
        if not generates or isinstance(self._policy, Apart):
            return left
        seats = max(0, self._sequences - len(self._decoding))
        prompt_tokens = _sum_up_to(left, islice(self._prompts, seats))
        waiting = Waiting(prompt_tokens, len(self._embeddings), len(self._prompts))
        return self._policy.embedding_tokens(left, waiting)

    def _embed(self, room: int, finished: list[Request]) -> int:
        """Whole embeddings while there is room; one that exceeds the room of an empty step is cut into parts."""
        tokens = 0
        while self._embeddings and tokens < room:
            part = self._embeddings[0].prompt_tokens
            if part > room - tokens:
                if tokens:
                    break
                part = room
            request = self._embeddings[0]
            request.prompt_tokens -= part
            tokens += part
            if not request.prompt_tokens:
                finished.append(self._embeddings.popleft())
        return tokens

    def _read_prompts(self, room: int, first: list[Request]) -> int:
        """In their order; the last one may be cut, and continues in the next step."""
        tokens = 0
        while self._prompts and tokens < room and len(self._decoding) + len(first) < self._sequences:
            request = self._prompts[0]
            part = min(request.prompt_tokens, room - tokens)
            request.prompt_tokens -= part
            tokens += part
            if not request.prompt_tokens:
                first.append(self._prompts.popleft())
        return tokens

    def _decode(self, first: list[Request], finished: list[Request]) -> None:
        """Each sequence that decodes gets a token, and each prompt that ends here its first."""
        self._decode_steps += 1
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._decode_steps:
            finished.append(heappop(decoding)[2])
        for request in first:
            if request.new_tokens <= 1:
                finished.append(request)
                continue
            self._order += 1
            heappush(decoding, (self._decode_steps + request.new_tokens - 1, self._order, request))


def _sum_up_to(most: int, requests: Iterable[Request]) -> int:
    total = 0
    for request in requests:
        total += request.prompt_tokens
        if total >= most:
            break
    return total
