"""Requests as callers write them: words for enums, seconds for times, and errors that name the option."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, Union

from google.protobuf.message import Message

from tokenbatch_client.errors import InputError
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.ranking.v1 import ranking_pb2

Input = Union[str, Sequence[int]]
"""A text, or token ids of the model's own vocabulary, special tokens included."""
Options = Mapping[str, Any]
"""Fields of the request by their names in the .proto file, such as model, priority="background", truncate="end",
input_type="query", tenant; and `expire_s`, the seconds after which it need not be answered any more."""

_M = TypeVar("_M", bound=Message)
_FIRST = "UNSPECIFIED"
_REFUSED = frozenset({"encoding"})
"""Vectors come as float32."""


def embed(inputs: Sequence[Input], options: Options, request_id: str = "") -> pb.EmbedRequest:
    if isinstance(inputs, (str, bytes)):
        raise _wrong("inputs is one text: give a list of texts")
    given = [
        pb.Input(text=each) if isinstance(each, str) else pb.Input(token_ids=pb.TokenIds(ids=each)) for each in inputs
    ]
    return _made(pb.EmbedRequest, options, request_id=request_id, inputs=given)


class Exchange:
    """The requests of one stream, of `per_request` inputs each, by the indices of their first ones."""

    def __init__(self, per_request: int, options: Options) -> None:
        self._per_request = per_request
        self._options = options
        self._next = 0
        self._sizes: dict[str, int] = {}

    def requests(self, inputs: Iterable[Input]) -> Iterator[pb.EmbedRequest]:
        given = iter(inputs)
        while some := list(islice(given, self._per_request)):
            yield self._request(some)

    async def requests_of(self, inputs: AsyncIterable[Input]) -> AsyncIterator[pb.EmbedRequest]:
        some: list[Input] = []
        async for each in inputs:
            some.append(each)
            if len(some) == self._per_request:
                yield self._request(some)
                some = []
        if some:
            yield self._request(some)

    def place(self, response: pb.EmbedResponse) -> tuple[int, int]:
        """How many inputs it answers, and the index of the first."""
        return self._sizes.pop(response.request_id), int(response.request_id)

    def _request(self, some: list[Input]) -> pb.EmbedRequest:
        request_id = str(self._next)
        self._sizes[request_id] = len(some)
        self._next += len(some)
        return embed(some, self._options, request_id)


def rank(query: str, documents: Sequence[str], options: Options) -> ranking_pb2.RankRequest:
    return _made(ranking_pb2.RankRequest, options, query=query, documents=documents)


def score(pairs: Sequence[str | tuple[str, str]], options: Options) -> ranking_pb2.ScoreRequest:
    given = [
        ranking_pb2.Pair(text=each) if isinstance(each, str) else ranking_pb2.Pair(text=each[0], second_text=each[1])
        for each in pairs
    ]
    return _made(ranking_pb2.ScoreRequest, options, pairs=given)


def generate(
    prompt: Input | Sequence[Mapping[str, str]], options: Options, request_id: str = "", *, final_only: bool = True
) -> generation_pb2.GenerateRequest:
    """Of a text, token ids, or the messages of a chat, each with `role` and `content`; options may be Sampling's."""
    given: dict[str, Any] = {"request_id": request_id, "final_only": final_only}
    if isinstance(prompt, str):
        given["prompt"] = prompt
    elif prompt and isinstance(prompt[0], int):
        given["token_ids"] = pb.TokenIds(ids=prompt)  # type: ignore[arg-type] # all are, as the first
    else:
        given["messages"] = {"messages": prompt}
    of_request = {*_fields(generation_pb2.GenerateRequest), "expire_s"}
    sampling = {name: value for name, value in options.items() if name not in of_request}
    others = {name: value for name, value in options.items() if name in of_request}
    made = _made(generation_pb2.Sampling, sampling)
    return _made(generation_pb2.GenerateRequest, others, sampling=made, **given)


def _made(kind: type[_M], options: Options, **fields: Any) -> _M:
    """A message with these fields. Raises InputError."""
    for name, value in options.items():
        if name == "expire_s":
            if value is not None:
                seconds, rest = divmod(time.time() + value, 1)
                fields["expire_time"] = {"seconds": int(seconds), "nanos": int(rest * 1e9)}
            continue
        field = _fields(kind).get(name)
        if field is None or name in fields or name in _REFUSED:
            known = ", ".join(each for each in _fields(kind) if each not in {*fields, *_REFUSED})
            raise _wrong(f"{name} is no option: there are {known}")
        fields[name] = _number(field, value) if isinstance(value, str) and field.enum_type is not None else value
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise _wrong(str(error)) from error


def _fields(kind: type[Message]) -> Mapping[str, Any]:
    return kind.DESCRIPTOR.fields_by_name


def _number(field: Any, word: str) -> int:
    """Of an enum's value, by its name without what all names begin with; none for an empty word."""
    prefix = field.enum_type.values[0].name[: -len(_FIRST)]
    value = field.enum_type.values_by_name.get(prefix + (word.upper() or _FIRST))
    if value is None:
        allowed = ", ".join(repr(each.name[len(prefix) :].lower()) for each in field.enum_type.values[1:])
        raise _wrong(f"{field.name} is {word!r}: give one of {allowed}")
    number: int = value.number
    return number


def _wrong(message: str) -> InputError:
    return InputError(message, "INVALID_ARGUMENT")
