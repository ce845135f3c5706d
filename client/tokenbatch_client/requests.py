"""Requests as callers write them: words for enums, seconds for times, and errors that name the option."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Callable, TypeVar, Union

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from tokenbatch_client.errors import InputError, TokenbatchError, Unavailable
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.ranking.v1 import ranking_pb2

Input = Union[str, Sequence[int]]
"""A text, or token ids of the model's own vocabulary, special tokens included."""
Options = Mapping[str, Any]
"""Fields of the request by their names in the .proto file, such as model, priority="background", truncate="end",
input_type="query", tenant; and `expire_s`, the seconds after which it need not be answered any more."""

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
_FIRST = "UNSPECIFIED"
_REFUSED = frozenset({"encoding"})
"""Vectors come as float32."""
_BYTES = (bytes, bytearray, memoryview)
_WRONG = (TypeError, ValueError, LookupError, OverflowError)
"""What Python and protobuf raise for a value that no field can hold."""


def embed(inputs: Iterable[Input], options: Options, request_id: str = "", first: int = 0) -> pb.EmbedRequest:
    """Of inputs that are counted from `first`. Raises InputError, which names the one that is wrong."""
    return _made(pb.EmbedRequest, options, request_id=request_id, inputs=_each("input", inputs, _input, first))


def rank(query: str, documents: Iterable[str], options: Options) -> ranking_pb2.RankRequest:
    """Raises InputError, which names the document that is wrong."""
    given = _each("document", documents, _text)
    return _made(ranking_pb2.RankRequest, options, query=_made_of("query", _text, query), documents=given)


def score(pairs: Iterable[str | tuple[str, str]], options: Options) -> ranking_pb2.ScoreRequest:
    """Raises InputError, which names the pair that is wrong."""
    return _made(ranking_pb2.ScoreRequest, options, pairs=_each("pair", pairs, _pair))


def generate(
    prompt: Input | Sequence[Mapping[str, str]], options: Options, request_id: str = "", *, final_only: bool = True
) -> generation_pb2.GenerateRequest:
    """Of a text, token ids, or the messages of a chat, each with `role` and `content`; options may be Sampling's."""
    given = {"request_id": request_id, "final_only": final_only, **_made_of("prompt", _prompt, prompt)}
    of_request = {*_fields(generation_pb2.GenerateRequest), "expire_s"} & {*options}
    sampling = {name: value for name, value in options.items() if name not in of_request}
    given["sampling"] = _made(generation_pb2.Sampling, sampling)
    return _made(generation_pb2.GenerateRequest, {name: options[name] for name in of_request}, **given)


def listed(name: str, texts: Any) -> Iterable[Any]:
    """The same texts. Raises InputError for what is no list of them."""
    if isinstance(texts, (str, *_BYTES)) or not isinstance(texts, Iterable):
        found = "one text" if isinstance(texts, str) else type(texts).__name__
        raise _wrong(f"{name} is {found}: give a list of texts")
    return texts


class Exchange:
    """The requests of one stream, of `per_request` inputs each, by the indices of their first ones.

    gRPC hides what fails while it takes a request from its caller: requests end there, and `end` raises it.
    Raises InputError for wrong options, and for what is no list of texts.
    """

    def __init__(self, per_request: Any, options: Options) -> None:
        if not isinstance(per_request, int) or per_request < 1:
            raise _wrong(f"per_request is {per_request!r}: give 1 or more")
        embed([], options)
        self._per_request, self._options = per_request, options
        self._next = 0
        self._sizes: dict[str, int] = {}
        self._failure: Exception | None = None

    def requests(self, inputs: Any) -> Iterator[pb.EmbedRequest]:
        """Of what can be iterated over."""
        return self._requests(iter(listed("inputs", inputs)))

    def _requests(self, given: Iterator[Input]) -> Iterator[pb.EmbedRequest]:
        try:
            while some := list(islice(given, self._per_request)):
                yield self._request(some)
        except Exception as error:  # noqa: BLE001 - of the caller's own inputs, too
            self._failure = error

    async def requests_of(self, inputs: Any) -> AsyncIterator[pb.EmbedRequest]:
        """Of what can be iterated over with `async for`."""
        some: list[Input] = []
        try:
            async for each in inputs:
                some.append(each)
                if len(some) == self._per_request:
                    yield self._request(some)
                    some = []
            if some:
                yield self._request(some)
        except Exception as error:  # noqa: BLE001 - of the caller's own inputs, too
            self._failure = error

    def _request(self, some: list[Input]) -> pb.EmbedRequest:
        request = embed(some, self._options, str(self._next), self._next)
        self._sizes[request.request_id] = len(some)
        self._next += len(some)
        return request

    def place(self, response: pb.EmbedResponse) -> tuple[int, int]:
        """How many inputs it answers, and the index of the first. Raises TokenbatchError for another's answer."""
        size = self._sizes.pop(response.request_id, None)
        if size is None:
            raise TokenbatchError(f"an answer names request {response.request_id!r}, which waits for none", "UNKNOWN")
        return size, int(response.request_id)

    def end(self) -> None:
        """Raise what ended the requests early, if anything did; and Unavailable where some have no answer."""
        if self._failure is not None:
            raise self._failure
        if self._sizes:
            message = f"the stream ended, and {sum(self._sizes.values())} inputs have no row"
            raise Unavailable(message, "UNAVAILABLE", retryable=True)


def _each(name: str, inputs: Iterable[Any], make: Callable[[Any], _T], first: int = 0) -> list[_T]:
    return [_made_of(f"{name} {index}", make, given) for index, given in enumerate(listed(f"{name}s", inputs), first)]


def _made_of(name: str, make: Callable[[Any], _T], given: Any) -> _T:
    """What is made of one input. Raises InputError, which names it."""
    try:
        return make(given)
    except _WRONG as error:
        raise _wrong(f"{name}: {error}") from error


def _input(given: Any) -> pb.Input:
    return pb.Input(text=given) if isinstance(given, str) else pb.Input(token_ids=_token_ids(given))


def _token_ids(given: Any) -> pb.TokenIds:
    if isinstance(given, _BYTES) or not isinstance(given, Iterable):
        raise TypeError(f"{type(given).__name__} is neither a text nor token ids: decode bytes to str")
    return pb.TokenIds(ids=given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{type(given).__name__} is no text: give a str")
    given.encode()  # a lone surrogate is refused here, where the input has a name
    return given


def _pair(given: Any) -> ranking_pb2.Pair:
    if isinstance(given, str):
        return ranking_pb2.Pair(text=given)
    text, second_text = map(_text, given)
    return ranking_pb2.Pair(text=text, second_text=second_text)


def _prompt(given: Any) -> dict[str, Any]:
    """The field of a request that holds it."""
    if isinstance(given, str):
        return {"prompt": _text(given)}
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        return {"messages": generation_pb2.Messages(messages=given)}
    return {"token_ids": _token_ids(given)}


def _made(kind: type[_M], options: Options, **fields: Any) -> _M:
    """A message with these fields. Raises InputError."""
    for name, value in options.items():
        field = _fields(kind).get(name)
        if name == "expire_s":
            fields["expire_time"] = None if value is None else _made_of(name, _time_after, value)
        elif field is None or name in {*fields, *_REFUSED}:
            known = ", ".join(each for each in _fields(kind) if each not in {*fields, *_REFUSED})
            raise _wrong(f"{name} is no option: there are {known}")
        elif isinstance(value, str) and field.enum_type is not None:
            fields[name] = _number(name, field.enum_type, value)
        else:
            fields[name] = value
    try:
        return kind(**fields)
    except _WRONG as error:
        raise _wrong(str(error)) from error


def _time_after(delay_s: float) -> timestamp_pb2.Timestamp:
    """The time `delay_s` seconds from now."""
    seconds, rest = divmod(time.time() + delay_s, 1)
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(rest * 1e9))


def _fields(kind: type[Message]) -> Mapping[str, Any]:
    return kind.DESCRIPTOR.fields_by_name


def _number(name: str, enum: Any, word: str) -> int:
    """Of the value that is named `word`, without what all its names begin with; none for an empty word."""
    prefix = enum.values[0].name[: -len(_FIRST)]
    numbers = {each.name[len(prefix) :].lower(): each.number for each in enum.values}
    number: int | None = numbers.get(word.lower() or _FIRST.lower())
    if number is None:
        raise unknown(name, word, list(numbers)[1:])
    return number


def unknown(name: str, word: Any, words: Iterable[str]) -> InputError:
    """The error for an option that is none of these words."""
    return _wrong(f"{name} is {word!r}: give one of {', '.join(map(repr, words))}")


def _wrong(message: str) -> InputError:
    return InputError(message, "INVALID_ARGUMENT")
