"""The client for asyncio: the calls of Client, as coroutines and asynchronous iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Callable

import grpc
import grpc.aio
from typing_extensions import Self

from tokenbatch_client import requests, results
from tokenbatch_client.attempts import Attempts
from tokenbatch_client.channel import Connection
from tokenbatch_client.client import TEXT_TIMEOUT_S, TIMEOUT_S
from tokenbatch_client.errors import of_call
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.embedding.v1.embedding_pb2_grpc import EmbeddingsStub
from tokenbatch_client.protos.generation.v1.generation_pb2_grpc import GenerationStub
from tokenbatch_client.protos.ranking.v1.ranking_pb2_grpc import RankingStub


class AsyncClient:
    """Calls over one channel, of one event loop; arguments and errors are those of Client."""

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, **connection: Any) -> None:
        self._connection = Connection(target, **connection)
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
        """A vector an input, as Client.embed."""
        request = requests.embed(inputs, **options)
        found = results.embeddings(await self._call(self._embeddings.Embed, request, timeout_s), len(inputs))
        if errors == "raise":
            found.raise_first()
        return found

    async def embed_stream(
        self, inputs: Iterable[requests.Input], *, timeout_s: float = 0.0, **options: Any
    ) -> AsyncIterator[tuple[int, results.Embedding]]:
        """Pairs of an input's index and its row, in completion order, as Client.embed_stream."""
        asked = (requests.embed([each], request_id=str(index), **options) for index, each in enumerate(inputs))
        stream = self._embeddings.EmbedStream(
            asked, timeout=timeout_s or self._timeout_s, metadata=self._connection.metadata
        )
        try:
            async for response in stream:
                yield int(response.request_id), results.embeddings(response, 1).rows[0]
        except grpc.RpcError as error:
            raise of_call(error) from error

    async def rank(
        self, query: str, documents: Sequence[str], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Ranked]:
        """The documents by falling score, as Client.rank."""
        request = requests.rank(query, documents, **options)
        return results.ranked(await self._call(self._ranking.Rank, request, timeout_s), documents)

    async def score(
        self, pairs: Sequence[str | tuple[str, str]], *, timeout_s: float = 0.0, **options: Any
    ) -> list[results.Scored]:
        """The scores of each pair, as Client.score."""
        return results.scored(await self._call(self._ranking.Score, requests.score(pairs, **options), timeout_s))

    async def generate(
        self, prompt: str | Sequence[Mapping[str, str]], *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> results.Text:
        """The whole text, as Client.generate."""
        last = await self._call(self._last, requests.generate(prompt, final_only=True, **options), timeout_s)
        return results.text([last.text], last)

    async def stream(
        self, prompt: str | Sequence[Mapping[str, str]], *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> AsyncIterator[str]:
        """The parts of the text as they come; ends with the text's error, if it failed."""
        request = requests.generate(prompt, **options)
        try:
            async for response in self._generation.Generate(
                request, timeout=timeout_s, metadata=self._connection.metadata
            ):
                if response.text:
                    yield response.text
        except grpc.RpcError as error:
            raise of_call(error) from error
        results.text((), response)

    async def models(self, *, timeout_s: float = 0.0) -> list[pb.Model]:
        """The models that are served now."""
        return list((await self._call(self._embeddings.ListModels, pb.ListModelsRequest(), timeout_s)).models)

    async def _last(self, request: Any, **options: Any) -> Any:
        return [response async for response in self._generation.Generate(request, **options)][-1]

    async def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        attempts = Attempts(timeout_s or self._timeout_s)
        while True:
            try:
                return await method(request, timeout=attempts.left_s, metadata=self._connection.metadata)
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                await asyncio.sleep(attempts.delay_s(error))
