"""Requests of what a caller asks for: words for the enums, and errors that name the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from tokenbatch_client.errors import InputError
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.ranking.v1 import ranking_pb2

_INPUT_TYPES = {"": pb.INPUT_TYPE_UNSPECIFIED, "query": pb.INPUT_TYPE_QUERY, "document": pb.INPUT_TYPE_DOCUMENT}
_PRIORITIES = {
    "": pb.PRIORITY_UNSPECIFIED,
    "interactive": pb.PRIORITY_INTERACTIVE,
    "default": pb.PRIORITY_DEFAULT,
    "background": pb.PRIORITY_BACKGROUND,
}
_TRUNCATE = {"none": pb.TRUNCATE_NONE, "start": pb.TRUNCATE_START, "end": pb.TRUNCATE_END}
Input = Union[str, Sequence[int]]
"""A text, or token ids of the model's own vocabulary, special tokens included."""


def embed(
    inputs: Sequence[Input],
    *,
    model: str = "",
    model_revision: str = "",
    input_type: str = "",
    dimensions: int = 0,
    normalize: bool | None = None,
    truncate: str = "none",
    priority: str = "",
    request_id: str = "",
) -> pb.EmbedRequest:
    if isinstance(inputs, (str, bytes)):
        raise InputError("inputs is one text: give a list of texts", "INVALID_ARGUMENT")
    request = pb.EmbedRequest(
        request_id=request_id,
        model=model,
        model_revision=model_revision,
        inputs=[_input(each) for each in inputs],
        input_type=_chosen("input_type", input_type, _INPUT_TYPES),
        dimensions=dimensions,
        truncate=_chosen("truncate", truncate, _TRUNCATE),
        priority=_chosen("priority", priority, _PRIORITIES),
    )
    if normalize is not None:
        request.normalize = normalize
    return request


def rank(
    query: str,
    documents: Sequence[str],
    *,
    model: str = "",
    top_n: int = 0,
    truncate: str = "none",
    max_tokens_per_doc: int = 0,
    priority: str = "",
) -> ranking_pb2.RankRequest:
    return ranking_pb2.RankRequest(
        model=model,
        query=query,
        documents=documents,
        top_n=top_n,
        truncate=_chosen("truncate", truncate, _TRUNCATE),
        max_tokens_per_doc=max_tokens_per_doc,
        priority=_chosen("priority", priority, _PRIORITIES),
    )


def score(
    pairs: Sequence[str | tuple[str, str]], *, model: str = "", truncate: str = "none", priority: str = ""
) -> ranking_pb2.ScoreRequest:
    return ranking_pb2.ScoreRequest(
        model=model,
        pairs=[
            ranking_pb2.Pair(text=each)
            if isinstance(each, str)
            else ranking_pb2.Pair(text=each[0], second_text=each[1])
            for each in pairs
        ],
        truncate=_chosen("truncate", truncate, _TRUNCATE),
        priority=_chosen("priority", priority, _PRIORITIES),
    )


def generate(
    prompt: str | Sequence[Mapping[str, str]],
    *,
    model: str = "",
    priority: str = "",
    final_only: bool = False,
    **sampling: Any,
) -> generation_pb2.GenerateRequest:
    """`prompt`: a text, or the messages of a chat, each with `role` and `content`. `sampling`: fields of Sampling."""
    request = generation_pb2.GenerateRequest(
        model=model, priority=_chosen("priority", priority, _PRIORITIES), final_only=final_only
    )
    try:
        request.sampling.CopyFrom(generation_pb2.Sampling(**sampling))
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.messages.messages.extend(generation_pb2.Message(**message) for message in prompt)
    except (TypeError, ValueError) as error:
        known = ", ".join(field.name for field in generation_pb2.Sampling.DESCRIPTOR.fields)
        raise InputError(f"{error}; sampling takes {known}", "INVALID_ARGUMENT") from error
    return request


def _input(each: Input) -> pb.Input:
    return pb.Input(text=each) if isinstance(each, str) else pb.Input(token_ids=pb.TokenIds(ids=each))


def _chosen(name: str, word: str, choices: Mapping[str, int]) -> Any:
    if word not in choices:
        allowed = ", ".join(repr(each) for each in choices if each)
        raise InputError(f"{name} is {word!r}: give one of {allowed}", "INVALID_ARGUMENT")
    return choices[word]
