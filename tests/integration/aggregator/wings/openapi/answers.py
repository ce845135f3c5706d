"""The bodies of responses as types, from which the OpenAPI document has its schemas; a test holds responses to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

_Base64 = Annotated[str, msgspec.Meta(description="base64 of the vector's bytes")]
_Numbers = list[float]


class ErrorObject(msgspec.Struct):
    """As OpenAI's clients read it; docs/errors.md explains the codes."""

    message: str
    type: str
    param: str | None
    code: str


class Error(msgspec.Struct):
    """OpenAI's and vLLM's clients read `error`, Voyage's and Jina's `detail`, Cohere's `message`."""

    error: ErrorObject
    detail: str
    message: str


class Usage(msgspec.Struct):
    """Tokens that were counted."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Embedding(msgspec.Struct):
    """The vector of an input; `scale`: what its int8 numbers are multiplied by."""

    object: Literal["embedding"]
    index: int
    embedding: _Base64 | _Numbers
    scale: float = 1.0


class Embeddings(msgspec.Struct):
    """A vector for each input, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    id: str


class DocumentEmbeddings(msgspec.Struct):
    """A vector for each chunk of a document."""

    object: Literal["list"]
    data: list[Embedding]
    index: int


class ContextualizedEmbeddings(msgspec.Struct):
    """A list for each document."""

    object: Literal["list"]
    data: list[DocumentEmbeddings]
    model: str
    usage: Usage
    id: str


class CohereEmbeddings(msgspec.Struct):
    """Vectors by their type, or in version 1 a list of them, if no type was asked for."""

    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    id: str
    embeddings: dict[str, list[_Base64 | _Numbers]] | list[_Numbers]
    texts: list[str]
    meta: dict[str, Any]


class RankedText(msgspec.Struct):
    """A document by its index; `error`: why it has no score of its own."""

    index: int
    relevance_score: float
    document: str | dict[str, str] = ""
    error: ErrorObject | None = None


class Ranking(msgspec.Struct):
    """The best first: `results` for Jina's, Cohere's and vLLM's clients, `data` for Voyage's."""

    id: str
    model: str
    object: Literal["list"]
    results: list[RankedText]
    data: list[RankedText]
    meta: dict[str, Any]
    usage: Usage


class PairScore(msgspec.Struct):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float
    error: ErrorObject | None = None


class Scores(msgspec.Struct):
    """A score for each pair, in their order."""

    id: str
    model: str
    object: Literal["list"]
    data: list[PairScore]
    usage: Usage


class Class(msgspec.Struct):
    """The most probable class of a text, and the probability of each."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int
    error: ErrorObject | None = None


class Classes(msgspec.Struct):
    """Classes of each text, in their order."""

    id: str
    model: str
    object: Literal["list"]
    data: list[Class]
    usage: Usage


class Choice(msgspec.Struct):
    """The text, or in an event the new part of it."""

    index: int
    finish_reason: Literal["stop", "length"] | None
    logprobs: dict[str, Any] | None
    text: str = ""
    message: dict[str, str] = {}


class Generation(msgspec.Struct):
    """A generated text. With `stream` the response is server-sent events, each with a part, and `[DONE]` at the end."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class TokensOfInput(msgspec.Struct):
    """`data`: a row a token, or base64 of their float32, of a model that gives vectors; else `indices` and `values`."""

    object: Literal["pooling", "sparse"]
    index: int
    data: _Base64 | list[_Numbers] | msgspec.UnsetType = msgspec.UNSET
    indices: list[int] | msgspec.UnsetType = msgspec.UNSET
    values: _Numbers | msgspec.UnsetType = msgspec.UNSET


class TokenRows(msgspec.Struct):
    """The vectors, or weights, of the tokens of each input, in their order."""

    object: Literal["list"]
    data: list[TokensOfInput]
    model: str
    usage: Usage
    id: str
    created: int


class Tokens(msgspec.Struct):
    """A text's tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_offsets: list[tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET


class Prompt(msgspec.Struct):
    """The text of tokens."""

    prompt: str


class Model(msgspec.Struct):
    """A revision of a model that has a server."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    aliases: list[str]
    revision: str
    tasks: list[str]
    dimensions: int
    matryoshka_dimensions: list[int]
    tokenizer: str


class ModelList(msgspec.Struct):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Nothing(msgspec.Struct):
    """An empty object."""
