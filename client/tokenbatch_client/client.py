"""The client for threads. Generated from aio.py by .ci/proto: edit that one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

import grpc
from typing_extensions import Self

from tokenbatch_client import requests, results
from tokenbatch_client.connection import Connection, seconds
from tokenbatch_client.errors import of_call
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.embedding.v1.embedding_pb2_grpc import EmbeddingsStub
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.generation.v1.generation_pb2_grpc import GenerationStub
from tokenbatch_client.protos.ranking.v1.ranking_pb2_grpc import RankingStub

TIMEOUT_S = 10.0
"""The deadline of a call that names none: ten times what a loaded service takes."""
TEXT_TIMEOUT_S = 120.0
"""The deadline of a text, of which a CPU gives some tokens a second."""
Prompt = Union[requests.Input, Sequence[Mapping[str, str]]]
"""A text, token ids, or the messages of a chat, each with `role` and `content`."""


class Client:
    """Calls over one channel, which is enough for hundreds at once.

    `target`: host:port. Other arguments are those of Connection. Every call takes the fields of its request as options
    (`requests.Options`), and raises TokenbatchError: InputError, which is a ValueError too, where an argument is wrong.
    """

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, **connection: Any) -> None:
        self._connection = Connection(target, **connection)
        self._metadata = self._connection.metadata
        self._timeout_s = timeout_s
        self._channel = self._connection.open(grpc)
        self._embeddings: Any = EmbeddingsStub(self._channel)
        self._ranking: Any = RankingStub(self._channel)
        self._generation: Any = GenerationStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def embed(
        self, inputs: Sequence[requests.Input], *, timeout_s: float = 0.0, errors: str = "raise", **options: Any
    ) -> results.Embeddings:
        """A vector an input. `errors`: "raise" the first, or "return" each in its row."""
        request = requests.embed(inputs, options)
        return results.embeddings(self._call(self._embeddings.Embed, request, timeout_s), len(request.inputs), errors)

    def embed_stream(
        self,
        inputs: Iterable[requests.Input],
        *,
        timeout_s: float = 0.0,
        per_request: int = 1,
        **options: Any,
    ) -> Iterator[tuple[int, results.Embedding]]:
        """Pairs of an input's index and its row, in completion order, over one stream; failed rows have their error.

        What `inputs` itself raises, or InputError for a wrong one, comes after the rows of those before.

        `timeout_s`: of each request of `per_request` inputs. The stream may last, but ends with Unavailable when its
        aggregator stops, or after 270 s: what has no row then is to be sent again.
        """
        expire_s = seconds(timeout_s or self._timeout_s)
        exchange = requests.Exchange(per_request, {"expire_s": expire_s, **options})
        given = exchange.requests(inputs)
        return self._rows(exchange, given)

    def rank(
        self, query: str, documents: Sequence[str], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Ranked]:
        """The documents by falling score, failed ones last."""
        request = requests.rank(query, documents, options)
        return results.ranked(self._call(self._ranking.Rank, request, timeout_s), request.documents)

    def score(
        self, pairs: Sequence[str | tuple[str, str]], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Scored]:
        """The scores of each pair, or of each text by itself."""
        return results.scored(self._call(self._ranking.Score, requests.score(pairs, options), timeout_s))

    def generate(self, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any) -> results.Text:
        """The whole text after a prompt or a chat; options may be those of sampling, such as max_tokens."""
        return results.text(self._call(self._last, requests.generate(prompt, options), timeout_s))

    def stream(
        self, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> Iterator[generation_pb2.GenerateResponse]:
        """The text's parts (`.text`) as they come; ends with the text's error, if it failed."""
        request = requests.generate(prompt, options, final_only=False)
        return self._parts(request, seconds(timeout_s or self._timeout_s))

    def models(self, *, timeout_s: float = 0.0) -> list[pb.Model]:
        """The models that are served now."""
        return list((self._call(self._embeddings.ListModels, pb.ListModelsRequest(), timeout_s)).models)

    def _rows(self, exchange: requests.Exchange, given: Any) -> Iterator[tuple[int, results.Embedding]]:
        try:
            for response in self._embeddings.EmbedStream(given, metadata=self._metadata):
                for row in results.rows(response, *exchange.place(response)):
                    yield row.index, row
        except grpc.RpcError as error:
            raise of_call(error) from error
        exchange.raise_failure()

    def _parts(
        self, request: generation_pb2.GenerateRequest, timeout_s: float
    ) -> Iterator[generation_pb2.GenerateResponse]:
        try:
            for response in self._generation.Generate(request, timeout=timeout_s, metadata=self._metadata):
                results.raise_status(response.status)
                yield response
        except grpc.RpcError as error:
            raise of_call(error) from error

    def _last(self, request: generation_pb2.GenerateRequest, **call: Any) -> generation_pb2.GenerateResponse:
        last = generation_pb2.GenerateResponse()
        for last in self._generation.Generate(request, **call):  # noqa: B007 - it stays
            pass
        return last

    def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        attempts = self._connection.attempts(timeout_s or self._timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.left_s, metadata=self._metadata)
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                time.sleep(attempts.delay_s(error))
