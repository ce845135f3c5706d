"""`/v1/files` and `/v1/batches`, as OpenAI's and Voyage's clients call them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec
from typing_extensions import override

from aggregator.errors import shown
from aggregator.sources.calls.load import RateLimit
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.exchange import HttpExchange
from aggregator.sources.http.json_body import decode_body, read_any
from aggregator.sources.http.service import Mounted
from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.objects import (
    LONGEST_WINDOW_S,
    MOST_EXPIRES_AFTER_S,
    Batch,
    FileMeta,
    data_path,
    folder_of,
    is_batch,
    new_id,
)
from aggregator.wings.batches.store import ObjectGone
from aggregator.wings.batches.upload import FORM_BYTES, HELD_BYTES, Upload, expiry, too_large
from aggregator.wings.batches.views import page_of, shown_batch
from k8s.pod.http.exchange import Exchange, HttpError

_BYTES_PER_S = 32.0 * 1024 * 1024
"""Of all uploads together: reading them faster would hold up the event loop, and so all other callers."""
_WINDOW = re.compile(r"([1-9]\d{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_FILES, _MOST_BATCHES, _USUAL_BATCHES = 10_000, 100, 20
"""Of a page of a list."""
_MOST_DIGITS = 9
"""Of a number in a URL: Python refuses to read one of thousands."""
_PAIRS, _KEY, _VALUE = 16, 64, 512
"""Of metadata: pairs, and characters of each part, as OpenAI's API has them."""
_LINES = {"content-type": "application/jsonl"}
_PARTS = "uploads in parts are not taken: POST /v1/files takes a file of {} bytes in one"

Answered = Coroutine[Any, Any, None]


class Expiry(msgspec.Struct, forbid_unknown_fields=True):
    """When a file goes that a batch wrote."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=1, le=MOST_EXPIRES_AFTER_S)]


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/batches`; `request_params` are Voyage's."""

    remedies: ClassVar[dict[str, str]] = {"requests": "upload them as a file, and name it as input_file_id"}

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None
    request_params: dict[str, Any] | None = None


_BODY = msgspec.json.Decoder(BatchBody)


class _Route(NamedTuple):
    """The methods of a path; each is given the call, its tenant's folder, and what the path names."""

    pattern: str
    methods: dict[str, Callable[..., Answered]]


class BatchRoutes(Mounted):
    """Serves them. `endpoints`: those that a batch may name."""

    def __init__(self, calls: HttpCalls, desk: Desk, endpoints: Collection[str]) -> None:
        self._calls = calls
        self._desk = desk
        self._endpoints = endpoints
        self._rate = RateLimit(_BYTES_PER_S)
        self._routes = [
            (re.compile("/v1/files"), _Route("/v1/files", {"GET": self._list_files, "POST": self._end_upload})),
            (
                re.compile("/v1/files/([^/]+)"),
                _Route("/v1/files/{file}", {"GET": self._show_file, "DELETE": self._delete_file}),
            ),
            (re.compile("/v1/files/([^/]+)/content"), _Route("/v1/files/{file}/content", {"GET": self._send_file})),
            (re.compile("/v1/batches"), _Route("/v1/batches", {"GET": self._list_batches, "POST": self._begin})),
            (re.compile("/v1/batches/([^/]+)"), _Route("/v1/batches/{batch}", {"GET": self._show_batch})),
            (
                re.compile("/v1/batches/([^/]+)/cancel"),
                _Route("/v1/batches/{batch}/cancel", {"POST": self._cancel}),
            ),
        ]

    @override
    def takes(self, path: str) -> bool:
        return path.startswith(("/v1/files", "/v1/batches", "/v1/uploads"))

    @override
    def pattern(self, path: str) -> str:
        found = self._find(path)
        return found[0].pattern if found is not None else ""

    def _find(self, path: str) -> tuple[_Route, tuple[str, ...]] | None:
        for pattern, route in self._routes:
            if found := pattern.fullmatch(path):
                return route, found.groups()
        return None

    @override
    def open(self, exchange: HttpExchange) -> None:
        path, method = exchange.path, exchange.method
        found = self._find(path)
        if found is None:
            if path.startswith("/v1/uploads"):
                message = _PARTS.format(self._desk.settings.max_file_bytes)
                raise HttpError(404, "unknown_url", message)
            known = ", ".join(route.pattern for _, route in self._routes)
            raise HttpError(404, "unknown_url", f"there is no {method} {shown(path)}: the routes are {known}")
        route, named = found
        answer = route.methods.get(method)
        if answer is None:
            allow = ", ".join(route.methods)
            raise HttpError(405, "method_not_allowed", f"{route.pattern} takes {allow}, not {method}", allow=allow)
        folder = folder_of(exchange.identity.defaults.tenant)
        if answer == self._end_upload:
            self._begin_upload(exchange, folder)
            return
        self._calls.expect(exchange)

        def serve(_: Exchange) -> None:
            exchange.start(answer(exchange, folder, *named))

        exchange.serve = serve

    # Files.

    def _begin_upload(self, exchange: HttpExchange, folder: str) -> None:
        """Store the body while it comes. Raises HttpError or TokenbatchError."""
        self._calls.expect_uncompressed(exchange)
        if exchange.length > (most := self._desk.settings.max_file_bytes) + FORM_BYTES:
            raise too_large(most)
        room = exchange.held_room
        room.widen(HELD_BYTES)
        file_id = new_id("file-", self._desk.now_s())
        upload = Upload(exchange, self._desk, folder, file_id, self._rate)
        upload.add(exchange.take_body())  # what came with the head
        exchange.sink, exchange.on_gone = upload, upload.abandon

        def serve(_: Exchange) -> None:
            exchange.start(self._end_upload(exchange, folder, upload, file_id))

        exchange.serve = serve

    async def _end_upload(self, exchange: HttpExchange, folder: str, upload: Upload, file_id: str) -> None:
        """The whole body has come."""
        await upload.stored()
        shown_file = await asyncio.shield(self._kept(folder, upload, file_id))  # also where the caller leaves now
        self._send(exchange, shown_file)

    async def _kept(self, folder: str, upload: Upload, file_id: str) -> dict[str, Any]:
        """Show a file whose data is there, or delete that."""
        desk, now_s = self._desk, self._desk.now_s()
        try:
            _check_purpose(upload.fields.get("purpose", ""))
            meta = FileMeta(file_id, upload.filename, upload.size_bytes, now_s, expiry(upload.fields, now_s))
        except Exception:
            await desk.store.delete([data_path(folder, file_id)])
            raise
        return await desk.keep_file(folder, meta)

    async def _list_files(self, exchange: HttpExchange, folder: str) -> None:
        query = Query(exchange)
        purpose = query.text("purpose")
        files = [each for each in await self._desk.files(folder) if purpose in ("", each["purpose"])]
        if query.text("order") == "asc":
            files.reverse()
        self._send(exchange, page_of(files, query.text("after"), query.number("limit", _MOST_FILES, _MOST_FILES)))

    async def _show_file(self, exchange: HttpExchange, folder: str, file_id: str) -> None:
        self._send(exchange, await self._desk.file(folder, file_id) or _no_file(file_id))

    async def _delete_file(self, exchange: HttpExchange, folder: str, file_id: str) -> None:
        if not await self._desk.delete_file(folder, file_id):
            _no_file(file_id)
        self._send(exchange, {"id": file_id, "object": "file", "deleted": True})

    async def _send_file(self, exchange: HttpExchange, folder: str, file_id: str) -> None:
        data = await self._desk.content(folder, file_id)
        if data is None:
            _no_file(file_id)
            return
        try:
            first = await anext(data, b"")  # before the head says that all is well
        except ObjectGone:
            _no_file(file_id)
            return
        exchange.begin_stream(_LINES)
        if first:
            await exchange.write(first)
        async for piece in data:
            await exchange.write(piece)
        exchange.end_stream()

    # Batches.

    async def _begin(self, exchange: HttpExchange, folder: str) -> None:
        defaults = exchange.identity.defaults
        asked = await read_any(partial(decode_body, _BODY), exchange.take_body())
        if asked.endpoint not in self._endpoints:
            known = ", ".join(self._endpoints)
            raise FieldError(f"expected one of {known}, got {shown(asked.endpoint)}", "endpoint")
        window_s = _window_s(asked.completion_window)
        _check_metadata(asked.metadata or {})
        desk = self._desk
        if await desk.uploaded(folder, asked.input_file_id) is None:
            _no_file(asked.input_file_id)
        now_s = desk.now_s()
        expires = asked.output_expires_after
        batch = Batch(
            id=new_id("batch_", now_s),
            tenant=defaults.tenant,
            input_file_id=asked.input_file_id,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            created_s=now_s,
            expires_s=now_s + window_s,
            metadata=asked.metadata,
            output_expires_after_s=expires.seconds if expires is not None else 0,
            params=asked.request_params or {},
            trusts_tenant=defaults.trusts_tenant,
        )
        self._send(exchange, shown_batch(await desk.create(folder, batch)))

    async def _list_batches(self, exchange: HttpExchange, folder: str) -> None:
        query = Query(exchange)
        limit = query.number("limit", _USUAL_BATCHES, _MOST_BATCHES)
        found, has_more = await self._desk.all_seen(folder, query.text("after"), limit)
        self._send(exchange, page_of([shown_batch(each) for each in found], "", limit) | {"has_more": has_more})

    async def _show_batch(self, exchange: HttpExchange, folder: str, batch_id: str) -> None:
        seen = await self._desk.seen(folder, batch_id) if is_batch(batch_id) else None
        self._send(exchange, shown_batch(seen) if seen is not None else _no_batch(batch_id))

    async def _cancel(self, exchange: HttpExchange, folder: str, batch_id: str) -> None:
        seen = await self._desk.cancel(folder, batch_id) if is_batch(batch_id) else None
        self._send(exchange, shown_batch(seen) if seen is not None else _no_batch(batch_id))

    @staticmethod
    def _send(exchange: HttpExchange, answer: dict[str, Any]) -> None:
        exchange.answer(200, msgspec.json.encode(answer), {})


class Query:
    """The part of a URL behind its path. Raises HttpError for one of too many fields."""

    def __init__(self, exchange: HttpExchange) -> None:
        try:
            self._given = parse_qs(exchange.url.partition(b"?")[2].decode("latin-1"), max_num_fields=_PAIRS)
        except ValueError:
            message = f"the URL has more than {_PAIRS} query fields: none but limit, after, order and purpose are read"
            raise HttpError(400, "invalid_value", message) from None

    def text(self, name: str) -> str:
        return self._given.get(name, [""])[0]

    def number(self, name: str, default: int, most: int) -> int:
        """Raises FieldError."""
        given = self.text(name)
        if not given:
            return default
        number = int(given) if given.isdecimal() and len(given) <= _MOST_DIGITS else 0
        if not 0 < number <= most:
            raise FieldError(f"expected a whole number from 1 to {most}, got {shown(given)}", name)
        return number


def _no_file(file_id: str) -> dict[str, Any]:
    raise HttpError(404, "file_not_found", f"there is no file {shown(file_id)}")


def _no_batch(batch_id: str) -> dict[str, Any]:
    raise HttpError(404, "batch_not_found", f"there is no batch {shown(batch_id)}")


def _check_purpose(purpose: str) -> None:
    if purpose != "batch":
        raise FieldError(f"expected batch, got {shown(purpose)}: files are for batches alone", "purpose")


def _window_s(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _SECONDS[found[2]] if found is not None else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        most = LONGEST_WINDOW_S // _SECONDS["d"]
        message = f"expected a time such as 24h, 30m or 7d, at most {most}d, got {shown(window)}"
        raise FieldError(message, "completion_window")
    return seconds


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _PAIRS or any(len(key) > _KEY or len(value) > _VALUE for key, value in metadata.items()):
        message = f"expected at most {_PAIRS} pairs, of at most {_KEY} and {_VALUE} characters"
        raise FieldError(message, "metadata")
