"""The routes: the request that each makes for the pipeline, and how it is answered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, cast

import msgspec
from typing_extensions import override

from aggregator.admission.models import Models, ServedTask
from aggregator.errors import Code, ModelUnavailable, TokenbatchError, shown
from aggregator.observability.calls import CANCELLED, CallTelemetry
from aggregator.observability.tracing import Tracing
from aggregator.request.kind import Kind
from aggregator.request.request import Request
from aggregator.scheduler.work_item import Task
from aggregator.slow_lane import TakesLong, in_slow_lane
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call, call_of, failure_of
from aggregator.sources.calls.load import Room
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.http.answer import Answer, Form, Read
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.embeddings import EmbeddingsReader, Revisions
from aggregator.sources.http.errors import described, described_error
from aggregator.sources.http.exchange import HttpExchange
from aggregator.sources.http.json_body import takes_long
from aggregator.sources.http.static import Static
from k8s.pod.http.exchange import Exchange, HttpError, Service

_LONGEST_PATH = 64
"""Characters of an unknown path that is compared with those that there are."""

Serve = Callable[[HttpExchange], None]
Asked = tuple[Kind, bytes, Identity, float, Room, Callable[[bytes, Identity], tuple[Any, Call]]]
"""The kind of a body, the body, its caller, deadline and room, and its decoder."""


class DeadlinePassed(TokenbatchError):
    """The call's deadline has passed."""

    code = Code.DEADLINE_EXCEEDED


class AnsweredCall(Call):
    """The origin of a request that no task waits for: its completion writes the response.

    `form`: says whether it is over with the first input that fails, and how large the response will be.
    """

    __slots__ = ("_answer", "_form")

    def __init__(self, room: Room, answer: Callable[[Request], None], form: Answer) -> None:
        super().__init__(room)
        self._answer = answer
        self._form = form

    def is_over(self, request: Request) -> bool:
        return not request.remaining or (request.failed and self._form.needs_all)

    @override
    def answer_bytes(self, request: Request) -> int:
        return self._form.size_bytes(request)

    @override
    def complete(self, request: Request) -> None:
        self._answer(request)


class Mounted(ABC):
    """Routes that an extension serves."""

    @abstractmethod
    def takes(self, path: str) -> bool:
        """Whether the extension serves this path."""

    @abstractmethod
    def pattern(self, path: str) -> str:
        """The route of a path, with a placeholder for each name that a caller put in; empty for an unknown path."""

    @abstractmethod
    def open(self, exchange: HttpExchange) -> None:
        """Serve a call whose head was read and whose room is reserved. Raises TokenbatchError or HttpError."""


@dataclass(frozen=True, slots=True)
class Route:
    """A POST that a wing serves itself. `whole`: the form of its body, if a batch may ask for its whole answer."""

    serve: Serve
    whole: Form | None = None


OpenRoutes = Callable[["OpenAIService"], Mapping[str, Route]]
"""Opens the routes of a wing, by path; `wings/generation` and `wings/tokenize` have some."""


class OpenAIService(Service):
    """Answers the requests of all connections."""

    def __init__(
        self,
        calls: HttpCalls,
        models: Models,
        tracing: Tracing,
        routes: Mapping[str, Form],
        *,
        doors: Sequence[OpenRoutes] = (),
        static_paths: Sequence[Mapping[str, Callable[[], Static]]] = (),
        trusts_token_ids: bool,
    ) -> None:
        """`routes`, `doors`: each is a POST, beside that of embeddings; `static_paths`: answers to GET."""
        self.calls = calls
        self._telemetry = CallTelemetry(tracing, calls.load.metrics)
        self.models = models
        self.trusts_token_ids = trusts_token_ids
        embeddings = EmbeddingsReader(Revisions(models), trusts_token_ids=trusts_token_ids)
        forms: dict[str, Form] = {"/v1/embeddings": (EMBEDDING, embeddings), **routes}
        opened = {path: route for open_routes in doors for path, route in open_routes(self).items()}
        self.forms: Mapping[str, Form] = {
            **forms,
            **{path: route.whole for path, route in opened.items() if route.whole is not None},
        }
        """The bodies whose answer can be whole, by their path."""
        self.mounted: list[Mounted] = []
        self._routes: dict[str, tuple[str, Serve]] = {
            **{path: ("POST", partial(self._serve, *form)) for path, form in forms.items()},
            **{path: ("POST", route.serve) for path, route in opened.items()},
            "/v1/models": ("GET", self._list_models),
            "/health": ("GET", self._health),
        }
        self._static_paths = {path: read for each in static_paths for path, read in each.items()}
        self._routes |= dict.fromkeys(self._static_paths, ("GET", self._send_static))

    @override
    def exchange(self, transport: asyncio.Transport, on_answered: Callable[[], None]) -> HttpExchange:
        return HttpExchange(transport, self, on_answered)

    @override
    def received(self, exchange: Exchange) -> float:
        return self.calls.received(cast("HttpExchange", exchange))

    @override
    def discarded(self, size_bytes: int) -> float:
        return self.calls.discarded(size_bytes)

    @override
    def answered(self, exchange: Exchange, status: int) -> None:
        self._telemetry.metrics.http_responses.add(1, str(status))
        call = cast("HttpExchange", exchange).call
        if call is not None:
            call.status = status

    @override
    def fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, ConnectionError):
            cast("HttpExchange", exchange).failed_late(CANCELLED)
        elif exchange.is_answered:
            cast("HttpExchange", exchange).failed_late(failure_of(error).code.name)
            exchange.abort()
        elif isinstance(error, HttpError):
            exchange.answer(*described_error(error), closes=error.closes)
        else:
            exchange.answer(*described(failure_of(error)))

    @override
    def open(self, exchange: Exchange) -> None:
        """Its head is there: answer a GET, else set how it is served once its body is there. Raises TokenbatchError."""
        exchange = cast("HttpExchange", exchange)
        path, route = exchange.path, self._routes.get(exchange.path)
        pattern = path if route is not None else ""
        if route is None and path.startswith("/v1/models/"):
            pattern, route = "/v1/models/{model}", ("GET", self._show_model)
        mounted = next((each for each in self.mounted if each.takes(path)), None)
        if mounted is not None:
            pattern = mounted.pattern(path)
        trace = exchange.header(b"traceparent")
        exchange.call = self._telemetry.http(exchange.method, path, pattern, trace, secure=exchange.is_secure)
        if mounted is not None:
            self.calls.enter(exchange)
            mounted.open(exchange)
            return
        if route is None:
            similar = get_close_matches(path[:_LONGEST_PATH], self._routes, n=1)
            remedy = f"did you mean {similar[0]}?" if similar else f"the routes are {', '.join(self._routes)}"
            raise HttpError(404, "unknown_url", f"there is no {exchange.method} {shown(path)}: {remedy}")
        method, serve = route
        if exchange.method != method and (method, exchange.method) != ("GET", "HEAD"):
            message = f"{path} takes {method}, not {exchange.method}"
            raise HttpError(405, "method_not_allowed", message, allow="GET, HEAD" if method == "GET" else method)
        if path != "/health" and path not in self._static_paths:
            self.calls.enter(exchange)
        if method == "GET":
            serve(exchange)
        else:
            self.calls.expect(exchange)
            exchange.serve = cast("Callable[[Exchange], None]", serve)

    def _serve(self, kind: Kind, read: Read, exchange: HttpExchange) -> None:
        room, data = exchange.held_room, exchange.take_body()
        asked = kind, data, exchange.identity, exchange.deadline_s, room, partial(self._decoded, read, exchange, room)
        if not takes_long(data):
            try:
                self._submit(exchange, self.calls.take(*asked))
            except TakesLong:
                pass
            else:
                return
        exchange.start(self._serve_slowly(exchange, asked))

    async def _serve_slowly(self, exchange: HttpExchange, asked: Asked) -> None:
        self._submit(exchange, await self.calls.take_in_slow_lane(*asked))

    def _decoded(
        self, read: Read, exchange: HttpExchange, room: Room, data: bytes, identity: Identity
    ) -> tuple[Any, Call]:
        message, answer = read(data, identity.defaults, exchange.request_id)
        return message, AnsweredCall(room, partial(self._answer, exchange, answer), answer)

    def _submit(self, exchange: HttpExchange, request: Request) -> None:
        call = call_of(request)
        assert isinstance(call, AnsweredCall), "A request has another kind of call. This is a bug."
        if call.is_over(request):
            call.complete(request)
            return
        exchange.on_gone = partial(self.calls.give_up, request)
        exchange.on_late = partial(self._give_up, exchange, request)
        self.calls.submit(request)

    def _give_up(self, exchange: HttpExchange, request: Request) -> None:
        self.calls.give_up(request)
        message = "the deadline passed before the answer was there: x-request-timeout sets how long a caller waits"
        exchange.fail(DeadlinePassed(message))

    def _answer(self, exchange: HttpExchange, answer: Answer, request: Request) -> None:
        """Every input has its outcome."""
        try:
            failed = answer.failure(request)
            if failed is not None:
                status, body, headers = described(failed)
                exchange.answer(status, body, {**headers, "x-request-id": request.request_id})
            elif answer.takes_long(request):
                exchange.start(self._encode(exchange, answer, request))
            else:
                exchange.answer(200, answer.write(request), answer.headers(request))
        except Exception as error:  # noqa: BLE001 - it must not end the work of all others
            exchange.fail(error)

    async def _encode(self, exchange: HttpExchange, answer: Answer, request: Request) -> None:
        exchange.answer(200, await in_slow_lane(partial(answer.write, request)), answer.headers(request))

    def _list_models(self, exchange: HttpExchange) -> None:
        exchange.answer(200, msgspec.json.encode({"object": "list", "data": listed(self.models.tasks)}), {})

    def _show_model(self, exchange: HttpExchange) -> None:
        name = exchange.path.removeprefix("/v1/models/")
        found = listed(self.models.find(name, task) for task in Task)
        if not found:
            raise ModelUnavailable(f"model {name} has no server now")
        exchange.answer(200, msgspec.json.encode(found[0]), {})

    def _send_static(self, exchange: HttpExchange) -> None:
        sent = self._static_paths[exchange.path]()
        exchange.answer(200, sent.body, sent.headers)

    def _health(self, exchange: HttpExchange) -> None:
        exchange.answer(503 if self.drains else 200, b"{}", {})


def listed(models: Iterable[ServedTask]) -> list[dict[str, Any]]:
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
            shown["tasks"].append(description.kind)
            if description.kind == "embed":
                shown["dimensions"] = description.dimensions
                shown["matryoshka_dimensions"] = sorted(description.matryoshka_dimensions)
    return list(found.values())
