"""The clients for threads and for asyncio: each call is written once, with what it sends and how its answer is read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Callable, Generic, Protocol, TypeVar, Union, overload

import grpc.aio
from typing_extensions import Concatenate, ParamSpec, Self

from tokenbatch_client import requests, results
from tokenbatch_client.connection import Connection, seconds
from tokenbatch_client.errors import Closed, TokenbatchError, of_call
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.embedding.v1.embedding_pb2_grpc import EmbeddingsStub
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.generation.v1.generation_pb2_grpc import GenerationStub
from tokenbatch_client.protos.ranking.v1.ranking_pb2_grpc import RankingStub

TIMEOUT_S = 10.0
"""The deadline of a call that names none: ten times what a loaded service takes."""
TEXT_TIMEOUT_S = 120.0
"""The deadline of a text, of which a CPU gives some tokens a second."""
_ERRORS = ("raise", "return")
Prompt = Union[requests.Input, Sequence[Mapping[str, str]]]
"""A text, token ids, or the messages of a chat, each with `role` and `content`."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Sync_co = TypeVar("_Sync_co", covariant=True)
_Async_co = TypeVar("_Async_co", covariant=True)


@dataclass(frozen=True)
class Answer(Generic[_T]):
    """What one response holds: Client gives it, AsyncClient gives it to await."""

    method: Any
    request: Any
    timeout_s: float
    read: Callable[[Any], _T]


@dataclass(frozen=True)
class Stream(Generic[_T]):
    """What responses hold: Client gives an iterator, AsyncClient an asynchronous one."""

    open: Callable[[], Any]
    read: Callable[[Any], Iterable[_T]]
    end: Callable[[], object] = bool


class _Method(Protocol[_P, _Sync_co, _Async_co]):
    """A method by its types in both clients."""

    @overload
    def __get__(self, client: Client, owner: Any = None) -> Callable[_P, _Sync_co]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: Any = None) -> Callable[_P, _Async_co]: ...


def _answered(call: Callable[Concatenate[Any, _P], Answer[_T]]) -> _Method[_P, _T, Coroutine[Any, Any, _T]]:
    @wraps(call)
    def method(client: Any, *args: _P.args, **options: _P.kwargs) -> Any:
        return client._answer(partial(call, client, *args, **options))  # noqa: SLF001 - a client of below

    return method  # type: ignore[return-value]  # what a function does as an attribute is not typed


def _streamed(call: Callable[Concatenate[Any, _P], Stream[_T]]) -> _Method[_P, Iterator[_T], AsyncIterator[_T]]:
    @wraps(call)
    def method(client: Any, *args: _P.args, **options: _P.kwargs) -> Any:
        return client._each(call(client, *args, **options))  # noqa: SLF001 - a client of below

    return method  # type: ignore[return-value]  # what a function does as an attribute is not typed


class _Calls:
    """The calls of both clients over one channel, which is enough for hundreds at once."""

    _grpc: Any = grpc

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, **connection: Any) -> None:
        """`target`: host:port. Other arguments are those of Connection.

        Every call takes the fields of its request as options (`requests.Options`), and raises TokenbatchError:
        InputError, which is a ValueError too, where an argument is wrong.
        """
        self._connection = Connection(target, **connection)
        self._metadata = self._connection.metadata
        self._timeout_s = timeout_s
        self._channel = self._connection.open(self._grpc)
        self._closed = threading.Event()
        self._embeddings: Any = EmbeddingsStub(self._channel)
        self._ranking: Any = RankingStub(self._channel)
        self._generation: Any = GenerationStub(self._channel)
        self._whole_text: Any = self._channel.unary_unary(  # with final_only the stream is one response
            "/generation.v1.Generation/Generate",
            generation_pb2.GenerateRequest.SerializeToString,
            generation_pb2.GenerateResponse.FromString,
        )

    @_answered
    def embed(
        self, /, inputs: Sequence[requests.Input], *, timeout_s: float = 0.0, errors: str = "raise", **options: Any
    ) -> Answer[results.Embeddings]:
        """A vector an input. `errors`: "raise" the first, or "return" each in its row."""
        request = requests.embed(inputs, options)
        if errors not in _ERRORS:
            raise requests.unknown("errors", errors, _ERRORS)
        read = partial(results.embeddings, inputs=len(request.inputs), errors=errors)
        return Answer(self._embeddings.Embed, request, timeout_s, read)

    @_streamed
    def embed_stream(
        self,
        /,
        inputs: Iterable[requests.Input] | AsyncIterable[requests.Input],
        *,
        timeout_s: float = 0.0,
        per_request: int = 1,
        **options: Any,
    ) -> Stream[tuple[int, results.Embedding]]:
        """Pairs of an input's index and its row, in completion order, over one stream; failed rows have their error.

        What `inputs` itself raises, or InputError for a wrong one, comes after the rows of those before.

        `timeout_s`: of each request of `per_request` inputs. The stream may last, but ends with Unavailable when its
        aggregator stops, or after 270 s: what has no row then is to be sent again. Inputs of AsyncClient may be
        asynchronous.
        """
        exchange = requests.Exchange(per_request, {"expire_s": self._seconds(timeout_s), **options})
        awaits = isinstance(self, AsyncClient) and isinstance(inputs, AsyncIterable)
        sent: Any = exchange.requests_of(inputs) if awaits else exchange.requests(inputs)
        return Stream(
            partial(self._embeddings.EmbedStream, sent, metadata=self._metadata),
            lambda response: ((row.index, row) for row in results.rows(response, *exchange.place(response))),
            exchange.end,
        )

    @_answered
    def rank(
        self, /, query: str, documents: Sequence[str], *, timeout_s: float = 0.0, **options: Any
    ) -> Answer[list[results.Ranked]]:
        """The documents by falling score, failed ones last."""
        request = requests.rank(query, documents, options)
        return Answer(self._ranking.Rank, request, timeout_s, partial(results.ranked, documents=request.documents))

    @_answered
    def score(
        self, /, pairs: Sequence[str | tuple[str, str]], *, timeout_s: float = 0.0, **options: Any
    ) -> Answer[list[results.Scored]]:
        """The scores of each pair, or of each text by itself."""
        return Answer(self._ranking.Score, requests.score(pairs, options), timeout_s, results.scored)

    @_answered
    def generate(self, /, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any) -> Answer[results.Text]:
        """The whole text after a prompt or a chat; options may be those of sampling, such as max_tokens."""
        return Answer(self._whole_text, requests.generate(prompt, options), timeout_s, results.text)

    @_streamed
    def stream(
        self, /, prompt: Prompt, *, timeout_s: float = TEXT_TIMEOUT_S, **options: Any
    ) -> Stream[generation_pb2.GenerateResponse]:
        """The text's parts (`.text`) as they come; ends with the text's error, if it failed."""
        request = requests.generate(prompt, options, final_only=False)
        call = {"timeout": self._seconds(timeout_s), "metadata": self._metadata}
        return Stream(partial(self._generation.Generate, request, **call), results.part)

    @_answered
    def models(self, /, *, timeout_s: float = 0.0) -> Answer[list[pb.Model]]:
        """The models that are served now."""
        return Answer(self._embeddings.ListModels, pb.ListModelsRequest(), timeout_s, lambda found: list(found.models))

    def _seconds(self, timeout_s: float) -> float:
        return seconds(timeout_s or self._timeout_s)

    @contextmanager
    def _at_work(self) -> Generator[None]:
        """An attempt. Raises Closed for what gRPC raises where the client is closed, before it or meanwhile."""
        if self._closed.is_set():
            raise Closed
        try:
            yield
        except (grpc.RpcError, grpc.aio.UsageError, ValueError, asyncio.CancelledError) as error:
            if self._closed.is_set() and not isinstance(error, TokenbatchError) and not _is_cancelled(error):
                raise Closed from error
            raise


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is the caller's task that was cancelled, not gRPC's call; Python 3.11 and later can tell."""
    return isinstance(error, asyncio.CancelledError) and bool(getattr(asyncio.current_task(), "cancelling", int)())


class Client(_Calls):
    """The client for threads, which may share it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, /, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel. Running calls raise Closed."""
        self._closed.set()
        self._channel.close()

    def _answer(self, call: Callable[[], Answer[_T]]) -> _T:
        answer = call()
        attempts = self._connection.attempts(self._seconds(answer.timeout_s))
        while True:
            try:
                with self._at_work():
                    return answer.read(answer.method(answer.request, timeout=attempts.left_s, metadata=self._metadata))
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                time.sleep(attempts.delay_s(error))

    def _each(self, stream: Stream[_T]) -> Iterator[_T]:
        try:
            with self._at_work():
                for response in stream.open():
                    yield from stream.read(response)
        except grpc.RpcError as error:
            raise of_call(error) from error
        stream.end()


class AsyncClient(_Calls):
    """The client for asyncio."""

    _grpc = grpc.aio

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel. Running calls raise Closed."""
        self._closed.set()
        await self._channel.close()

    async def _answer(self, call: Callable[[], Answer[_T]]) -> _T:
        answer = call()
        attempts = self._connection.attempts(self._seconds(answer.timeout_s))
        while True:
            try:
                with self._at_work():
                    found = await answer.method(answer.request, timeout=attempts.left_s, metadata=self._metadata)
                    return answer.read(found)
            except grpc.RpcError as error:  # noqa: PERF203 - an attempt each
                await asyncio.sleep(attempts.delay_s(error))

    async def _each(self, stream: Stream[_T]) -> AsyncIterator[_T]:
        try:
            with self._at_work():
                async for response in stream.open():
                    for found in stream.read(response):
                        yield found
        except grpc.RpcError as error:
            raise of_call(error) from error
        stream.end()
