"""The client for asyncio; .ci/proto generates that for threads, `client.py`, from it: the same without await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Union

import grpc.aio
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


class AsyncClient:
    """Calls over one channel, which is enough for hundreds at once.

    `target`: host:port. Other arguments are those of Connection. Every call takes the fields of its request as options
    (`requests.Options`), and raises TokenbatchError: InputError, which is a ValueError too, where an argument is wrong.
    """

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, **connection: Any) -> None:
        self._connection = Connection(target, **connection)
        self._metadata = self._connection.metadata
        self._timeout_s = timeout_s
        self._channel = self._connection.open(grpc.aio)
        self._embeddings: Any = EmbeddingsStub(self._channel)
        self._ranking: Any = RankingStub(self._channel)
        self._generation: Any = GenerationStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def embed(
        self, inputs: Sequence[requests.Input], *, timeout_s: float = 0.0, errors: str = "raise", **options: Any
    ) -> results.Embeddings:
        """A vector an input. `errors`: "raise" the first, or "return" each in its row."""
        request = requests.embed(inputs, options)
        return results.embeddings(
            await self._call(self._embeddings.Embed, request, timeout_s), len(request.inputs), errors
        )

    def embed_stream(
        self,
        inputs: Iterable[requests.Input] | AsyncIterable[requests.Input],
        *,
        timeout_s: float = 0.0,
        per_request: int = 1,
        **options: Any,
    ) -> AsyncIterator[tuple[int, results.Embedding]]:
        """Pairs of an input's index and its row, in completion order, over one stream; failed rows have their error.

        What `inputs` itself raises, or InputError for a wrong one, comes after the rows of those before.

        `timeout_s`: of each request of `per_request` inputs. The stream may last, but ends with Unavailable when its
        aggregator stops, or after 270 s: what has no row then is to be sent again.
        """
        expire_s = seconds(timeout_s or self._timeout_s)
        exchange = requests.Exchange(per_request, {"expire_s": expire_s, **options})
        given = exchange.requests(inputs) if isinstance(inputs, Iterable) else exchange.requests_of(inputs)
        return self._rows(exchange, given)

    async def rank(
        self, query: str, documents: Sequence[str], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Ranked]:
        """The documents by falling score, failed ones last."""
        request = requests.rank(query, documents, options)
        return results.ranked(await self._call(self._ranking.Rank, request, timeout_s), request.documents)

    async def score(
        self, pairs: Sequence[str | tuple[str, str]], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Scored]:
        """The scores of each pair, or of each text by itself."""
        return results.scored(await self._call(self._ranking.Score, requests.score(pairs, options), timeout_s))

    async def generate(self, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any) -> results.Text:
        """The whole text after a prompt or a chat; options may be those of sampling, such as max_tokens."""
        return results.text(await self._call(self._last, requests.generate(prompt, options), timeout_s))

    def stream(
        self, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """The text's parts (`.text`) as they come; ends with the text's error, if it failed."""
        request = requests.generate(prompt, options, final_only=False)
        return self._parts(request, seconds(timeout_s or self._timeout_s))

    async def models(self, *, timeout_s: float = 0.0) -> list[pb.Model]:
        """The models that are served now."""
        return list((await self._call(self._embeddings.ListModels, pb.ListModelsRequest(), timeout_s)).models)

    async def _rows(self, exchange: requests.Exchange, given: Any) -> AsyncIterator[tuple[int, results.Embedding]]:
        try:
            async for response in self._embeddings.EmbedStream(given, metadata=self._metadata):
                for row in results.rows(response, *exchange.place(response)):
                    yield row.index, row
        except grpc.RpcError as error:
            raise of_call(error) from error
        exchange.raise_failure()

    async def _parts(
        self, request: generation_pb2.GenerateRequest, timeout_s: float
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        try:
            async for response in self._generation.Generate(request, timeout=timeout_s, metadata=self._metadata):
                results.raise_status(response.status)
                yield response
        except grpc.RpcError as error:
            raise of_call(error) from error

    async def _last(self, request: generation_pb2.GenerateRequest, **call: Any) -> generation_pb2.GenerateResponse:
        last = generation_pb2.GenerateResponse()
        async for last in self._generation.Generate(request, **call):  # noqa: B007 - it stays
            pass
        return last

    async def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        attempts = self._connection.attempts(timeout_s or self._timeout_s)
        while True:
            try:
                return await method(request, timeout=attempts.left_s, metadata=self._metadata)
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                await asyncio.sleep(attempts.delay_s(error))
