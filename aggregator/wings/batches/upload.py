"""The body of an upload on its way to the store: a form of which one field is a file, none of it kept for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from enum import Enum, auto

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from typing_extensions import override

from aggregator.sources.calls.load import RateLimit
from aggregator.sources.http.exchange import HttpExchange
from aggregator.wings.batches.batches import QuotaReached
from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.objects import MOST_EXPIRES_AFTER_S, data_path
from aggregator.wings.batches.store import UPLOAD_BYTES, UPLOADED_AT_ONCE
from k8s.pod.http.exchange import HttpError, Sink

_WAITING_BYTES = 2 * 1024 * 1024
"""Of what has come and not gone: then nothing is read."""
HELD_BYTES = UPLOADED_AT_ONCE * UPLOAD_BYTES + _WAITING_BYTES
"""What an upload holds of the ledger, whatever its size."""
_LOOK_AGAIN_S = 0.02
_SILENT_S = 1.0
"""After a silence it is looked whether the call is over, as one is of which nothing comes."""
_SLOWEST_BYTES_PER_S, _AFTER_S = 16 * 1024, 30.0
"""Slower uploads are ended after a while: each holds room for more than it sends."""
FORM_BYTES = 64 * 1024
"""Of an upload beside its file."""
_MOST_FIELDS, _MOST_BYTES = 16, 1024
"""Fields beside the file, and bytes of each; also of a name."""


class _In(Enum):
    """Where the parser is."""

    HEADERS = auto()
    FIELD = auto()
    FILE = auto()


class Upload(Sink):
    """One call's."""

    def __init__(self, exchange: HttpExchange, desk: Desk, folder: str, file_id: str, rate: RateLimit) -> None:
        """Begins to store. Raises HttpError for what is no form."""
        kind, options = parse_options_header(exchange.header(b"content-type"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            message = "expected multipart/form-data with purpose and file, as OpenAI's clients send a file"
            raise HttpError(415, "unsupported_media_type", message, closes=True)
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_content,
                    "on_part_data": self._content,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise HttpError(400, "invalid_form", str(error), closes=True) from None
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.size_bytes = 0
        self._exchange, self._desk, self._folder, self._file_id, self._rate = exchange, desk, folder, file_id, rate
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = self._new_bytes = 0
        self._error: Exception | None = None
        self._place = _In.HEADERS
        self._ended = False
        self._header = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._field: tuple[str, bytearray] = "", bytearray()
        self._had_file = False
        self._storing = asyncio.create_task(self._store(), name=f"upload {file_id}")
        self._storing.add_done_callback(_seen)

    # The body, as it comes.

    @override
    def add(self, data: bytes) -> None:
        if self._error is not None:
            return
        self._new_bytes += len(data)
        if self._exchange.arrived_bytes > self._desk.settings.max_file_bytes + FORM_BYTES:
            self._error = too_large(self._desk.settings.max_file_bytes)  # also by what is no file: fields, or a tail
            return
        try:
            self._parser.write(data)
        except FormParserError as error:
            self._error = HttpError(400, "invalid_form", f"the form cannot be read: {error}", closes=True)
        except HttpError as error:
            self._error = error

    @override
    def wait_s(self) -> float:
        """How long until more is read. Raises HttpError, or what the store raises."""
        now_s = asyncio.get_running_loop().time()
        sent_s = now_s - self._exchange.started_s
        if sent_s > _AFTER_S and self._exchange.arrived_bytes < _SLOWEST_BYTES_PER_S * sent_s:
            message = f"the file comes with less than {_SLOWEST_BYTES_PER_S} bytes a second"
            self._error = HttpError(408, "request_timeout", message, closes=True, retryable=True)
        if self._error is None and self._storing.done() and not self._ended:
            self._error = self._storing.exception()  # type: ignore[assignment]  # it was not cancelled
        if self._error is not None:
            self.abandon()
            raise self._error
        new_bytes, self._new_bytes = self._new_bytes, 0
        wait_s = self._rate.wait_s(new_bytes, now_s) if new_bytes else 0.0
        return max(wait_s, _LOOK_AGAIN_S) if self._waiting_bytes > _WAITING_BYTES else wait_s

    def abandon(self) -> None:
        """Its caller is gone, or it is refused: nothing of it stays."""
        self._storing.cancel()

    async def stored(self) -> None:
        """Wait until the whole file is in the store. Raises HttpError, or what the store raises."""
        if not self._ended and self._error is None:
            self._error = HttpError(400, "invalid_form", "the form has no end")
        if self._error is None and not self._had_file:
            self._error = HttpError(400, "missing_file", "the form has no field file with a file")
        if self._error is not None:
            self.abandon()
            raise self._error
        await self._storing

    # The store.

    async def _store(self) -> None:
        left_bytes = await self._desk.room_bytes(self._folder)
        await self._desk.store.upload(data_path(self._folder, self._file_id), self._taken(left_bytes))

    async def _taken(self, left_bytes: int) -> AsyncGenerator[bytes]:
        while True:
            try:
                async with asyncio.timeout(_SILENT_S):
                    data = await self._pieces.get()
            except TimeoutError:
                if self._exchange.is_answered or self._exchange.is_gone:
                    raise ConnectionResetError("the call is over") from None
                continue
            if data is None:
                return
            self._waiting_bytes -= len(data)
            left_bytes -= len(data)
            if left_bytes < 0:
                raise QuotaReached("the file is larger than what you may yet store: delete some of your files")
            yield data

    # The form.

    def _begin_part(self) -> None:
        self._place, self._headers = _In.HEADERS, {}

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = bytearray(), bytearray()

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        if b"filename" not in options:
            self._place = _In.FIELD
            self._field = name, bytearray()
            if len(self.fields) >= _MOST_FIELDS:
                raise HttpError(400, "invalid_form", f"the form has more than {_MOST_FIELDS} fields", closes=True)
            self.fields[name] = ""
            return
        if name != "file" or self._had_file:
            raise HttpError(400, "invalid_form", "expected one file, in the field file", closes=True)
        self._place, self._had_file = _In.FILE, True
        self.filename = options[b"filename"].decode(errors="replace")[:_MOST_BYTES]

    def _content(self, data: bytes, start: int, end: int) -> None:
        if self._place is _In.FIELD:
            name, value = self._field
            value.extend(data[start:end])
            if len(value) > _MOST_BYTES:
                raise HttpError(400, "invalid_form", f"a field has more than {_MOST_BYTES} bytes", closes=True)
            self.fields[name] = value.decode(errors="replace")
            return
        self.size_bytes += end - start
        if self.size_bytes > (most := self._desk.settings.max_file_bytes):
            raise too_large(most)
        self._waiting_bytes += end - start
        self._pieces.put_nowait(data[start:end])

    def _end(self) -> None:
        self._ended = True
        self._pieces.put_nowait(None)


def too_large(most_bytes: int) -> HttpError:
    return HttpError(413, "file_too_large", f"the file has more than {most_bytes} bytes: send several", closes=True)


def _seen(storing: asyncio.Task[None]) -> None:
    """Its error is told by whoever waits for it; where nobody does, its call is over."""
    if not storing.cancelled():
        storing.exception()


def expiry(fields: Mapping[str, str], now_s: float) -> float:
    """When a file goes that `expires_after` says; 0: never. Raises HttpError."""
    given = {name: value for name, value in fields.items() if name.startswith("expires_after")}
    seconds = given.get("expires_after[seconds]", "")
    if not given:
        return 0.0
    after_s = int(seconds) if seconds.isdecimal() else 0
    if given.get("expires_after[anchor]") != "created_at" or not 0 < after_s <= MOST_EXPIRES_AFTER_S:
        message = f"expires_after takes anchor created_at, and seconds from 1 to {MOST_EXPIRES_AFTER_S}"
        raise HttpError(400, "invalid_value", message)
    return now_s + after_s
