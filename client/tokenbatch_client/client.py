"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import grpc
from typing_extensions import Self

from tokenbatch_client import requests, results
from tokenbatch_client.attempts import Attempts
from tokenbatch_client.channel import Connection
from tokenbatch_client.errors import of_call
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.embedding.v1.embedding_pb2_grpc import EmbeddingsStub
from tokenbatch_client.protos.generation.v1.generation_pb2_grpc import GenerationStub
from tokenbatch_client.protos.ranking.v1.ranking_pb2_grpc import RankingStub

TIMEOUT_S = 10.0
"""The deadline of a call that names none: ten times what a loaded service takes."""
TEXT_TIMEOUT_S = 120.0
"""The deadline of a text, of which a CPU gives some tokens a second."""


class Client:
    """Calls over one channel, which is enough for hundreds at once; safe to share between threads.

    `target`: host:port. Other arguments are those of Connection. Every call raises TokenbatchError.
    """

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, **connection: Any) -> None:
        self._connection = Connection(target, **connection)
        self._timeout_s = timeout_s
        self._channel = self._connection.open()
        self._embeddings = EmbeddingsStub(self._channel)
        self._ranking = RankingStub(self._channel)
        self._generation = GenerationStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def embed(
        self, inputs: Sequence[requests.Input], *, timeout_s: float = 0.0, errors: str = "raise", **options: Any
    ) -> results.Embeddings:
        """A vector an input; options are those of requests.embed. `errors`: "raise" the first, or "return" each."""
        request = requests.embed(inputs, **options)
        found = results.embeddings(self._call(self._embeddings.Embed, request, timeout_s), len(inputs))
        if errors == "raise":
            found.raise_first()
        return found

    def embed_stream(
        self, inputs: Iterable[requests.Input], *, timeout_s: float = 0.0, **options: Any
    ) -> Iterator[tuple[int, results.Embedding]]:
        """Pairs of an input's index and its row, in completion order, over one stream; failed rows have their error."""
        asked = (requests.embed([each], request_id=str(index), **options) for index, each in enumerate(inputs))
        left_s = timeout_s or self._timeout_s
        try:
            for response in self._embeddings.EmbedStream(asked, timeout=left_s, metadata=self._connection.metadata):
                yield int(response.request_id), results.embeddings(response, 1).rows[0]
        except grpc.RpcError as error:
            raise of_call(error) from error

    def rank(
        self, query: str, documents: Sequence[str], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Ranked]:
        """The documents by falling score, failed ones last; options are those of requests.rank."""
        request = requests.rank(query, documents, **options)
        return results.ranked(self._call(self._ranking.Rank, request, timeout_s), documents)

    def score(
        self, pairs: Sequence[str | tuple[str, str]], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Scored]:
        """The scores of each pair, or of each text by itself; options are those of requests.score."""
        return results.scored(self._call(self._ranking.Score, requests.score(pairs, **options), timeout_s))

    def generate(
        self, prompt: str | Sequence[Mapping[str, str]], *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> results.Text:
        """The whole text after a prompt or a chat; options are those of requests.generate, such as max_tokens."""
        request = requests.generate(prompt, final_only=True, **options)
        last = self._call(
            lambda *given, **more: list(self._generation.Generate(*given, **more))[-1], request, timeout_s
        )
        return results.text([last.text], last)

    def stream(
        self, prompt: str | Sequence[Mapping[str, str]], *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> Iterator[str]:
        """The parts of the text as they come; ends with the text's error, if it failed."""
        request = requests.generate(prompt, **options)
        try:
            for response in self._generation.Generate(request, timeout=timeout_s, metadata=self._connection.metadata):
                if response.text:
                    yield response.text
        except grpc.RpcError as error:
            raise of_call(error) from error
        results.text((), response)

    def models(self, *, timeout_s: float = 0.0) -> list[pb.Model]:
        """The models that are served now."""
        return list(self._call(self._embeddings.ListModels, pb.ListModelsRequest(), timeout_s).models)

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        attempts = Attempts(timeout_s or self._timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.left_s, metadata=self._connection.metadata)
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                time.sleep(attempts.delay_s(error))
