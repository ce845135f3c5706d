"""OpenAI's routes: what each asks of the pipeline, and how it is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
from aiohttp import web

from aggregator.errors import ModelUnavailable
from aggregator.observability.tracing import Tracing
from aggregator.request.request import Request
from aggregator.scheduler.work_item import Task
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Read, call_of, failure_of
from aggregator.sources.calls.models import ServedModel, ServedModels, ServedRevision
from aggregator.sources.http.calls import HttpCall, HttpCalls, HttpContext, request_id_of
from aggregator.sources.http.embeddings import (
    EmbeddingsReader,
    Revisions,
    failed_input,
    milliseconds,
    response,
    timing_headers,
)
from aggregator.sources.http.errors import FieldError, HttpError, described, described_error
from aggregator.sources.http.generation import GenerationReader, HttpGenerationCall, Writer
from aggregator.sources.http.json_body import decode
from aggregator.sources.response import is_large
from aggregator.tokenizers.tokenizer import GenerationTokenizer
from protos.embedding.v1 import embedding_pb2 as pb

_JSON = "application/json"
_GONE = 499
"""Nobody reads it."""
_MANY_FLOATS = 16_384
"""Written as decimal numbers on a thread: it takes some milliseconds."""

_LONG_CHARACTERS = 65_536
_CHARACTERS_PER_TOKEN = 32
"""A longer prompt to tokenize is refused: its tokens are more than the model takes."""

T = TypeVar("T")


class Tokenize(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /tokenize`, as vLLM's server has it."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class Detokenize(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /detokenize`, as vLLM's server has it."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


TOKENIZE, DETOKENIZE = msgspec.json.Decoder(Tokenize), msgspec.json.Decoder(Detokenize)

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""
Serve = Callable[[web.BaseRequest], Awaitable[Answer | web.StreamResponse]]


class OpenAIService:
    """The handler of a server: every request is answered here. `drains`: connections are to close after each answer."""

    def __init__(self, calls: HttpCalls, models: ServedModels, tracing: Tracing, *, trusts_token_ids: bool) -> None:
        self.drains = False
        self.metrics = calls.load.metrics
        self._calls = calls
        self._models = models
        self._tracing = tracing
        revisions = Revisions(models)
        self._read_embeddings = EmbeddingsReader(revisions, trusts_token_ids=trusts_token_ids)
        self._read_generation = GenerationReader(revisions, trusts_token_ids=trusts_token_ids)
        self._routes: dict[str, tuple[str, Serve]] = {
            "/v1/embeddings": ("POST", self._embeddings),
            "/v1/completions": ("POST", partial(self._generate, read=self._read_generation.completion)),
            "/v1/chat/completions": ("POST", partial(self._generate, read=self._read_generation.chat)),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/v1/models": ("GET", self._list_models),
            "/health": ("GET", self._health),
        }

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Its room is held until the answer is handed to the network."""
        started_s = time.monotonic()
        closes = False
        try:
            answer = await self._route(http)(http)
        except HttpError as error:
            answer, closes = described_error(error), error.closes
        except ConnectionError:  # its caller went away while a stream was written
            return web.Response(status=_GONE)
        except Exception as error:  # noqa: BLE001 - `failure_of` logs what is not expected
            answer = described(failure_of(error))
        if not isinstance(answer, tuple):
            self.metrics.http_responses.add(1, str(answer.status))
            return answer
        status, body, headers = answer
        self.metrics.http_responses.add(1, str(status))
        headers["content-type"] = _JSON
        headers["openai-processing-ms"] = milliseconds(time.monotonic() - started_s)
        if "x-request-id" not in headers and (request_id := request_id_of(http)):
            headers["x-request-id"] = request_id
        whole = web.Response(status=status, body=body, headers=headers)
        if closes or self.drains:
            whole.force_close()
        with suppress(ConnectionError):  # its caller went away
            await whole.prepare(http)
            await whole.write_eof()
            await http.writer.drain()
            if not http.content.is_eof():
                await self._calls.linger(http)
        return whole

    def _route(self, http: web.BaseRequest) -> Serve:
        path, route = http.path, self._routes.get(http.path)
        if route is None and path.startswith("/v1/models/"):
            route = "GET", self._show_model
        if route is None:
            known = ", ".join(f"{method} {path}" for path, (method, _) in self._routes.items())
            raise HttpError(404, "unknown_url", f"there is no {http.method} {path}: the routes are {known}")
        method, serve = route
        allow = "GET, HEAD" if method == "GET" else method
        if http.method not in allow.split(", "):
            message = f"{path} takes {method}, not {http.method}"
            raise HttpError(405, "method_not_allowed", message, allow=allow)
        return serve

    async def _embeddings(self, http: web.BaseRequest) -> Answer:
        calls = self._calls
        request = await calls.receive(http, self._read_embeddings)
        if truncate_to := cast("HttpCall", request.origin).truncate_to:
            request.options = replace(request.options, truncate_to=truncate_to)
        if not request.failed:
            with self._tracing.serve_http(http.path, request.traceparent):
                await calls.answered(request)
        failed = failed_input(request)
        if failed is not None:
            answer = described(failed)
        else:
            body = await asyncio.to_thread(response, request) if _takes_long(request) else response(request)
            room = call_of(request).room
            if len(body) > room.size_bytes:  # from now on this is what it holds
                room.charge(len(body) - room.size_bytes)
            answer = 200, body, timing_headers(request)
        answer[2]["x-request-id"] = request.request_id
        return answer

    async def _generate(self, http: web.BaseRequest, read: Read) -> Answer | web.StreamResponse:
        """One text, whole or as events. A failure before the first event has its status; a later one is an event."""
        calls = self._calls
        request = await calls.receive(http, read, HttpGenerationCall)
        call = call_of(request)
        assert isinstance(call, HttpGenerationCall), "A generation request has another kind of call. This is a bug."
        writer = Writer(request, self._tokenizer_of(request))
        with self._tracing.serve_http(http.path, request.traceparent):
            calls.submit(request)
            try:
                return await self._written(http, request, call, writer)
            except BaseException:
                calls.give_up(request)
                raise

    async def _written(
        self, http: web.BaseRequest, request: Request, call: HttpGenerationCall, writer: Writer
    ) -> Answer | web.StreamResponse:
        generated = request.generation
        while not call.over:
            await call.news()
            if call.streams and generated is not None and generated.token_ids:
                break
        failure = request.failure if call.over else None
        if failure is not None and not (call.streams and generated is not None and generated.token_ids):
            status, body, headers = described(failure)
            return status, body, {**headers, "x-request-id": request.request_id}
        if not call.streams:
            return 200, writer.whole(), {"x-request-id": request.request_id}
        return await self._stream(http, request, call, writer)

    async def _stream(
        self, http: web.BaseRequest, request: Request, call: HttpGenerationCall, writer: Writer
    ) -> web.StreamResponse:
        """Events as the text grows; a caller that reads slowly gets several deltas as one."""
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-request-id": request.request_id}
        stream = web.StreamResponse(headers=headers)
        if self.drains:
            stream.force_close()
        await stream.prepare(http)
        done = False
        while not done:
            done = call.over
            for event in writer.events(done=done):
                await stream.write(event)
            await http.writer.drain()
            if not done:
                await call.news()
        await stream.write_eof()
        return stream

    def _tokenizer_of(self, request: Request) -> Callable[[], GenerationTokenizer]:
        """The tokenizer of its revision, which is known only after admission."""

        def tokenizer() -> GenerationTokenizer:
            assert request.generation is not None, "A text has no generation. This is a bug."
            revisions = self._models.find(request.model, request.task).revisions
            served = revisions.get(request.generation.model_revision) or next(iter(revisions.values()))
            return served.generation_tokenizer

        return tokenizer

    async def _tokenize(self, http: web.BaseRequest) -> Answer:
        asked, identity = await self._asked(http, TOKENIZE)
        served = self._served(asked.model or identity.defaults.model)
        limit = max(_LONG_CHARACTERS, _CHARACTERS_PER_TOKEN * served.description.max_input_tokens)
        if len(asked.prompt) > limit:
            raise FieldError(f"the prompt has more than {limit} characters", "prompt")
        counted = await served.counting.count([asked.prompt], long=len(asked.prompt) > _LONG_CHARACTERS)
        ids = counted.ids.tolist()
        if not asked.add_special_tokens:
            ids = np.frombuffer(served.generation_tokenizer.without_special(counted.ids.tobytes()), "<i4").tolist()
        found = {"count": len(ids), "max_model_len": served.description.max_input_tokens, "tokens": ids}
        return 200, msgspec.json.encode(found), {}

    async def _detokenize(self, http: web.BaseRequest) -> Answer:
        asked, identity = await self._asked(http, DETOKENIZE)
        served = self._served(asked.model or identity.defaults.model)
        size = served.description.vocabulary_size
        if len(asked.tokens) > served.description.max_input_tokens:
            raise FieldError(f"more than {served.description.max_input_tokens} token ids", "tokens")
        if any(token >= size for token in asked.tokens):
            raise FieldError(f"a token id is not below {size}, the size of the vocabulary", "tokens")
        detokenizer = served.generation_tokenizer.detokenizer(b"")
        text = "".join(map(detokenizer.step, asked.tokens))
        return 200, msgspec.json.encode({"prompt": text}), {}

    async def _asked(self, http: web.BaseRequest, decoder: msgspec.json.Decoder[T]) -> tuple[T, Identity]:
        identity = self._calls.callers.identify(HttpContext(http))
        room = self._calls.enter(identity.holders)
        data = await self._calls.body(http, room)
        room.widen(len(data))
        return decode(decoder, data), identity

    def _served(self, name: str) -> ServedRevision:
        """The revision that most servers have. Raises UnknownModel or ModelUnavailable."""
        for task in Task:
            served = self._models.find(name, task).choose("", "")
            if served is not None:
                return served
        raise ModelUnavailable(f"model {name} has no server now")

    async def _list_models(self, http: web.BaseRequest) -> Answer:
        self._calls.enter(self._calls.callers.identify(HttpContext(http)).holders)
        return 200, msgspec.json.encode({"object": "list", "data": listed(self._models)}), {}

    async def _show_model(self, http: web.BaseRequest) -> Answer:
        self._calls.enter(self._calls.callers.identify(HttpContext(http)).holders)
        name = http.path.removeprefix("/v1/models/")
        found = listed(self._models.find(name, task) for task in Task)
        if not found:
            raise ModelUnavailable(f"model {name} has no server now")
        return 200, msgspec.json.encode(found[0]), {}

    async def _health(self, http: web.BaseRequest) -> Answer:
        del http
        return (503 if self.drains else 200), b"{}", {}


def _takes_long(request: Request) -> bool:
    call = call_of(request)
    assert isinstance(call, HttpCall), "A call over gRPC was answered over HTTP. This is a bug."
    options = request.options
    as_floats = not call.as_base64 and options.encoding == pb.ENCODING_FLOAT32
    return is_large(request) or (as_floats and len(request.outcomes) * options.dimensions > _MANY_FLOATS)


def listed(models: Iterable[ServedModel]) -> list[dict[str, Any]]:
    """Revisions of models in OpenAI's form, with vLLM's and our own fields; most clients look at `id` only.

    A revision that does both tasks comes once; `max_model_len` is its longest text of either.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for model in models:
        for revision, served in model.revisions.items():
            description = served.description
            shown = found.setdefault(
                (model.name, revision),
                {
                    "id": model.name,
                    "object": "model",
                    "created": 0,
                    "owned_by": "tokenbatch",
                    "max_model_len": 0,
                    "aliases": model.aliases,
                    "revision": revision,
                    "tasks": [],
                    "dimensions": 0,
                    "matryoshka_dimensions": [],
                    "tokenizer": description.tokenizer_fingerprint,
                },
            )
            shown["max_model_len"] = max(shown["max_model_len"], description.max_input_tokens)
            if description.generation is None:
                shown["tasks"].append("embed")
                shown["dimensions"] = description.dimensions
                shown["matryoshka_dimensions"] = sorted(description.matryoshka_dimensions)
            else:
                shown["tasks"].append("generate")
    return list(found.values())
