"""Serve OpenAI's completions and chat completions over HTTP, whole or as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from aggregator.request.request import Defaults, Request
from aggregator.slow_lane import TakesLong, in_slow_lane
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import call_of
from aggregator.sources.calls.load import Room
from aggregator.sources.http.embeddings import Revisions
from aggregator.sources.http.errors import FieldError, described
from aggregator.sources.http.exchange import HttpExchange
from aggregator.sources.http.json_body import takes_long
from aggregator.sources.http.service import OpenAIService, Route
from aggregator.wings.generation.calls import GenerationCall
from aggregator.wings.generation.chat import Spelling
from aggregator.wings.generation.forms import ChatRequest, CompletionRequest, GenerationReader
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.writing import GenerationWriter, WholeText
from protos.generation.v1.generation_pb2 import GenerateRequest

_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}

ReadGeneration = Callable[[bytes, Defaults, str], tuple[GenerateRequest, CompletionRequest | ChatRequest]]


class HttpGenerationCall(GenerationCall):
    """The origin of a request for a generation, and the body that asked for it."""

    __slots__ = ("asked",)

    def __init__(self, room: Room, asked: CompletionRequest | ChatRequest) -> None:
        super().__init__(room)
        self.asked = asked
        self.streams = bool(asked.stream)


def open_routes(service: OpenAIService) -> Mapping[str, Route]:
    reader = GenerationReader(Revisions(service.models), trusts_token_ids=service.trusts_token_ids)
    door = _Door(service)
    return {
        path: Route(partial(door.generate, read), (GENERATION, partial(door.read_whole, read)))
        for path, read in (("/v1/completions", reader.completion), ("/v1/chat/completions", reader.chat))
    }


class _Door:
    def __init__(self, service: OpenAIService) -> None:
        self._calls = service.calls
        self._models = service.models

    def read_whole(
        self, read: ReadGeneration, data: bytes, defaults: Defaults, request_id: str
    ) -> tuple[GenerateRequest, WholeText]:
        message, asked = read(data, defaults, request_id)
        if asked.stream:
            raise FieldError("the answer is whole here: leave it out", "stream")
        return message, WholeText(asked, self._spelling_of)

    def generate(self, read: ReadGeneration, exchange: HttpExchange) -> None:
        exchange.start(self._write_generation(read, exchange))

    async def _write_generation(self, read: ReadGeneration, exchange: HttpExchange) -> None:
        """One text, whole or as events. A failure before the first event has its status; a later one is an event."""
        calls, room = self._calls, exchange.held_room

        def decoded(data: bytes, identity: Identity) -> tuple[GenerateRequest, HttpGenerationCall]:
            message, asked = read(data, identity.defaults, exchange.request_id)
            return message, HttpGenerationCall(room, asked)

        data = exchange.take_body()
        asked = GENERATION, data, exchange.identity, exchange.deadline_s, room, decoded
        try:
            request = await calls.take_in_slow_lane(*asked) if takes_long(data) else calls.take(*asked)
        except TakesLong:
            request = await calls.take_in_slow_lane(*asked)
        calls.submit(request)
        try:
            await self._write_texts(exchange, request)
        except BaseException:
            calls.give_up(request)
            raise

    async def _write_texts(self, exchange: HttpExchange, request: Request) -> None:
        call, generated = call_of(request), generation_of(request)
        assert isinstance(call, HttpGenerationCall), "A generation request has another kind of call. This is a bug."
        writer = GenerationWriter(request, call.asked, self._spelling_of(request))
        headers = {"x-request-id": request.request_id}
        while not call.over:
            await call.news()
            if call.streams and generated.token_ids:
                break
        if call.over and request.failure is not None and not (call.streams and generated.token_ids):
            status, body, others = described(request.failure)
            exchange.answer(status, body, {**others, **headers})
        elif not call.streams:
            body = await in_slow_lane(writer.whole) if writer.take() else writer.whole()
            exchange.answer(200, body, headers)
        else:
            exchange.begin_stream({**_EVENTS, **headers})
            done = False
            while not done:  # a caller that reads slowly gets several deltas as one
                done = call.over
                events = writer.events(done=done)
                if writer.take():
                    events = iter(await in_slow_lane(partial(list[bytes], events)))
                for event in events:
                    await exchange.write(event)
                if not done:
                    await call.news()
            if request.failure is not None:
                exchange.failed_late(request.failure.code.name)
            exchange.end_stream()

    def _spelling_of(self, request: Request) -> Callable[[], Spelling]:
        """The spelling of its revision, which is known only after admission."""

        def spelling() -> Spelling:
            revisions = self._models.find(request.model, request.task).revisions
            served = revisions.get(generation_of(request).model_revision) or next(iter(revisions.values()))
            return Spelling(served.tokenizer)

        return spelling
