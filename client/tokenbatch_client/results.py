"""What calls give."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenbatch_client.errors import TokenbatchError, of_status
from tokenbatch_client.protos.embedding.v1 import embedding_pb2
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.ranking.v1 import ranking_pb2


@dataclass(frozen=True)
class Embedding:
    """One input's vector, or its error. `raw`: float32, little endian."""

    index: int
    raw: bytes
    token_count: int
    error: TokenbatchError | None = None

    def vector(self) -> array[float]:
        """The vector's floats. Raises the input's error."""
        if self.error is not None:
            raise self.error
        floats = array("f", self.raw)
        if sys.byteorder == "big":
            floats.byteswap()
        return floats


@dataclass(frozen=True)
class Embeddings:
    """The answer to one request: a row an input, in their order."""

    model: str
    model_revision: str
    rows: tuple[Embedding, ...]

    def vectors(self) -> list[array[float]]:
        """Every vector. Raises the error of the first input that failed."""
        return [row.vector() for row in self.rows]

    def numpy(self) -> Any:
        """Float32 [inputs, dimensions]. Raises as vectors(), and ImportError without numpy."""
        import numpy as np  # noqa: PLC0415 - optional

        self.raise_first()
        return np.stack([np.frombuffer(row.raw, "<f4") for row in self.rows])

    def raise_first(self) -> None:
        """Raise the error of the first input that failed, if one did."""
        for row in self.rows:
            if row.error is not None:
                raise row.error


@dataclass(frozen=True)
class Ranked:
    """One document: its place in the request, and its score or error."""

    index: int
    score: float
    document: str
    error: TokenbatchError | None = None


@dataclass(frozen=True)
class Scored:
    """One pair: its scores, one or one a label, or its error."""

    scores: tuple[float, ...]
    labels: tuple[str, ...]
    error: TokenbatchError | None = None


@dataclass(frozen=True)
class Text:
    """A generated text. `finish_reason`: "stop" or "length"."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


def rows(response: embedding_pb2.EmbedResponse, inputs: int, first: int = 0) -> Iterator[Embedding]:
    """A response's rows, counted from `first`; where the request failed as a whole, each input has its error.

    Raises TokenbatchError for more or fewer than inputs.
    """
    end = first
    for found in response.embeddings:
        failed = of_status(found.status, f"input {end}: ") if found.HasField("status") else None
        yield Embedding(end, found.embedding, found.token_count, failed)
        end += 1
    failed = of_status(response.status)
    if failed is None and end != first + inputs:
        raise TokenbatchError(f"{inputs} inputs were sent, and {end - first} rows came", "UNKNOWN")
    for index in range(end, first + inputs):
        yield Embedding(index, b"", 0, failed)


def embeddings(response: embedding_pb2.EmbedResponse, inputs: int, errors: str) -> Embeddings:
    """All rows. Raises the first error where `errors` is "raise"."""
    found = Embeddings(response.model, response.model_revision, tuple(rows(response, inputs)))
    if errors == "raise":
        found.raise_first()
    return found


def ranked(response: ranking_pb2.RankResponse, documents: Sequence[str]) -> list[Ranked]:
    """The documents in the order of the response. Raises the error of a request that failed as a whole."""
    _raise_without(response.results, response.status)
    return [
        Ranked(each.index, each.score, documents[each.index], of_status(each.status, f"document {each.index}: "))
        for each in response.results
    ]


def scored(response: ranking_pb2.ScoreResponse) -> list[Scored]:
    """The pairs in their order. Raises the error of a request that failed as a whole."""
    _raise_without(response.results, response.status)
    labels = tuple(response.labels)
    return [
        Scored(tuple(each.scores), labels, of_status(each.status, f"pair {index}: "))
        for index, each in enumerate(response.results)
    ]


def text(last: generation_pb2.GenerateResponse) -> Text:
    """A text, of its last response. Raises its error."""
    part(last)
    reason = generation_pb2.FinishReason.Name(last.finish_reason).replace("FINISH_REASON_", "").lower()
    return Text(last.text, reason, last.usage.prompt_tokens, last.usage.completion_tokens)


def part(response: generation_pb2.GenerateResponse) -> list[generation_pb2.GenerateResponse]:
    """The response itself, as all that it holds. Raises its error."""
    _raise_without((), response.status)
    return [response]


def _raise_without(found: Sequence[Any], status: embedding_pb2.Status) -> None:
    if not found and (failed := of_status(status)) is not None:
        raise failed
