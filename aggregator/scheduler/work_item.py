"""One input in the queue (`Query`), and the computation that gives it a vector (`WorkItem`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any

ID_BYTES = 4
"""The size of a token id, and of a mark behind the ids."""


_INVALID_ARGUMENT, _OUT_OF_RANGE = 3, 11
"""Codes of gRPC with which a server says that the request is wrong."""


class Priority(IntEnum):
    """Classes in order of rank: a lower number is served first."""

    INTERACTIVE = 0
    DEFAULT = 1
    BACKGROUND = 2


class Beside(Enum):
    """Whose more urgent batches a server got lately, beside the one that is packed."""

    NOBODY = "nobody"
    OWN = "own"
    OTHERS = "others"


class Task(StrEnum):
    """The work that a request asks for and a model server does; a server may do both in the same engine steps."""

    EMBED = "embed"
    GENERATE = "generate"
    SCORE = "score"
    TOKENS = "embed_tokens"

    @property
    def words(self) -> str:
        """What is done, as in "does not ...": embed tokens."""
        return self.replace("_", " ")

    @property
    def does(self) -> str:
        """What a server does: embeds tokens."""
        verb, *rest = self.words.split(" ", 1)
        return " ".join((f"{verb}s", *rest))


DEFAULT_TASK = Task.EMBED
"""Of a server or a caller that names none."""


@dataclass(slots=True, eq=False)
class Query:
    """One input of a `request` that waits for its vector: what `item` computes, None before and afterwards.

    Times are monotonic seconds; a deadline of `inf` means none. `start_tag`: of its turn among tenants, if it had one.
    """

    request: Any  # an `aggregator.request.request.Request`, of which the scheduler knows nothing
    index: int
    priority: Priority
    tenant: str
    enqueued_s: float
    deadline_s: float
    item: WorkItem | None = None
    start_tag: int = 0

    @property
    def done(self) -> bool:
        return self.item is None

    @property
    def waits(self) -> bool:
        """Whether it is queued. The queue keeps it in several orders, and removes it from all of them together."""
        return self.item is not None and self.item.queued


@dataclass(slots=True, eq=False)
class WorkItem:
    """One computation: token ids in (little-endian int32, special tokens included), one vector out.

    Marks may follow the ids, so that equal bytes and counts are equal computations. Where a model tells the texts of a
    pair apart: an int32, the place at which the second begins. Of a document in chunks, which gives a vector of each:
    two of each chunk, its first token and the one behind its last. Identical inputs share one item as its waiters.
    While it is `queued`, every waiter is alive, and `priority` is the most urgent class among them. `refusal`: the code
    and the words with which a server failed it last, and not its whole batch.
    """

    token_ids: bytes
    token_count: int
    waiters: list[Query]
    priority: Priority
    queued: bool = False
    refusal: tuple[int, str] = (0, "")

    @property
    def chunks(self) -> int:
        """How many chunks it has; 0: it is no document in chunks."""
        return (len(self.token_ids) // ID_BYTES - self.token_count) // 2

    @property
    def rows(self) -> int:
        """How many vectors it gives."""
        return max(1, (len(self.token_ids) // ID_BYTES - self.token_count) // 2)

    @property
    def is_refused(self) -> bool:
        """Whether a server said last that the request is wrong; that is proven as any other failure is."""
        return self.refusal[0] in (_INVALID_ARGUMENT, _OUT_OF_RANGE)

    @property
    def alive(self) -> bool:
        return any(query.item is not None for query in self.waiters)


def key_of(token_ids: bytes, token_count: int) -> bytes | tuple[bytes, int]:
    """What equal computations have in common: marks behind the ids may be the bytes of another input's ids."""
    return token_ids if len(token_ids) == ID_BYTES * token_count else (token_ids, token_count)


ByDeadline = tuple[float, int, Query]
"""A query in a heap: its deadline (seconds), its arrival number, the query."""
