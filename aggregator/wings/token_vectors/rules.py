"""How the texts of a model that gives a vector a token become sequences, by what its server says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from aggregator.model_server import Details
from aggregator.scheduler.work_item import ID_BYTES, Task
from protos.modelserver.v1 import modelserver_pb2 as pb

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Side:
    """The rules of queries, or of documents: ids behind the first special tokens, the most tokens (0: the model's).

    `filler`: the id that fills a text up to `least_tokens`. `left_out`: ids without a row.
    """

    prefix: bytes = b""
    most_tokens: int = 0
    filler: int = 0
    least_tokens: int = 0
    left_out: frozenset[int] = frozenset()

    def sequence(self, token_ids: bytes, special_bytes: int) -> bytes:
        """Token ids, with a prefix behind the first `special_bytes` and filled up; int32 little endian."""
        sequence = token_ids[:special_bytes] + self.prefix + token_ids[special_bytes:]
        missing = self.least_tokens - len(sequence) // ID_BYTES
        return sequence + self.filler.to_bytes(ID_BYTES, "little") * max(0, missing)

    def spans(self, sequence: bytes) -> bytes:
        """The span of each token that has a row: its place, and the one behind it; int32 little endian pairs."""
        ids: Ids = np.frombuffer(sequence, "<i4")
        places = np.arange(ids.size, dtype="<i4")
        if self.left_out:
            places = places[~np.isin(ids, list(self.left_out))]
        return np.stack((places, places + 1), axis=1).tobytes()


@dataclass(frozen=True, slots=True)
class Rules(Details):
    """The rules of both sides. `weights`: a row is one weight of its token; `special`: ids whose weight is left out."""

    task: ClassVar[Task] = Task.TOKENS
    agreed: ClassVar[tuple[str, ...]] = ("dimensions", "normalizes", "query_prompt", "document_prompt", "details")

    query: Side = Side()
    document: Side = Side()
    weights: bool = False
    special: frozenset[int] = frozenset()

    @classmethod
    def of(cls, said: pb.TokenVectors) -> Rules:
        left_out = frozenset(said.left_out_ids)
        query = Side(
            _bytes(said.query_prefix),
            said.query_tokens,
            said.expansion_id,
            said.expansion_tokens,
            left_out if said.left_out_of_queries else frozenset(),
        )
        document = Side(
            _bytes(said.document_prefix),
            said.document_tokens,
            left_out=left_out if said.left_out_of_documents else frozenset(),
        )
        return cls(query, document, said.weights, left_out if said.weights else frozenset())


def largest_weights(
    token_ids: bytes, rows: npt.NDArray[np.float32], special: frozenset[int]
) -> tuple[Ids, npt.NDArray[np.float32]]:
    """Each id above weight 0 once, ascending, with its largest weight; `rows` float32 [tokens, 1] in the ids' order."""
    ids, places = np.unique(np.frombuffer(token_ids, "<i4"), return_inverse=True)
    weights = np.zeros(ids.size, np.float32)
    np.maximum.at(weights, places, rows[:, 0])
    kept = (weights > 0) & ~np.isin(ids, list(special))
    return ids[kept], weights[kept]


def _bytes(ids: Iterable[int]) -> bytes:
    return b"".join(token_id.to_bytes(ID_BYTES, "little") for token_id in ids)
