"""A chunk on its way: the requests of its lines, read as the HTTP door reads bodies, and their answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from aggregator.errors import Code, TokenbatchError
from aggregator.request.request import Defaults, Failure, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.slow_lane import TakesLong, in_slow_lane
from aggregator.sources.http.answer import Answer, Form
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import takes_long
from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.sources.wire.message import parse
from aggregator.wings.batches.answers import Lines
from aggregator.wings.batches.lines import body_of, decoded, lines_with_ids
from aggregator.wings.batches.objects import Batch, Pointer, part_path

_LOG = logging.getLogger(__name__)
SLICE_LINES = 32
"""Lines that are read, queued or answered in one turn of the event loop, in less than a millisecond."""
_SLICE_BYTES = 128 * 1024
"""Bytes of answers that are written in one turn. Live calls run between the turns."""
_INTERNAL = Failure(Code.INTERNAL, "internal error: see the log of the aggregator")


@dataclass(eq=False, slots=True)
class Chunk:
    """A chunk whose lines are being computed.

    `raws`: the lines as they came, of which `read` are requests by now. `ended`: no line of it is waited for.
    """

    pointer: Pointer
    record: InFlightRecord
    batch: Batch
    lines: Lines
    raws: Sequence[bytes]
    read: int = 0
    tries: dict[int, int] = field(default_factory=dict)
    ended: bool = False

    @property
    def is_unread(self) -> bool:
        """Whether some of its lines are no requests yet."""
        return self.read < len(self.raws)

    @property
    def path(self) -> str:
        return part_path(self.pointer.folder, self.pointer.batch, self.pointer.chunk)


@dataclass(eq=False, slots=True)
class Origin:
    """Where the answer to a request goes: its line, by its place in its chunk."""

    chunk: Chunk
    place: int
    answer: Answer


def origin_of(request: Request) -> Origin:
    return cast("Origin", request.origin)


class LineReader:
    """Makes requests of lines. `forms`: of the bodies of lines, by endpoint."""

    def __init__(self, source: Source, forms: Mapping[str, Form], default_model: str) -> None:
        self._source = source
        self._forms = forms
        self._default_model = default_model

    @staticmethod
    def chunk(pointer: Pointer, record: InFlightRecord, batch: Batch, data: bytes | None) -> Chunk:
        """A chunk of these bytes. Raises ObjectGone where there are none, or others than were there."""
        raws, ids = lines_with_ids(data, pointer.lines)
        return Chunk(pointer, record, batch, Lines(pointer.batch, pointer.chunk, ids), raws)

    async def requests(self, chunk: Chunk, places: Sequence[int], now_s: float, wall_s: float) -> list[Request]:
        """The requests of the lines at these places; a line that is none has failed then."""
        found: list[Request] = []
        for place in places:
            read = partial(self._request, chunk, place, now_s, wall_s)
            try:
                made = await in_slow_lane(read) if takes_long(chunk.raws[place]) else read()
            except TakesLong:
                made = await in_slow_lane(read)
            if not chunk.lines.is_open(place):  # its batch was cancelled
                continue
            if isinstance(made, Failure):
                chunk.lines.fail(place, made)
            else:
                found.append(made)
        return found

    def _request(self, chunk: Chunk, place: int, now_s: float, wall_s: float) -> Request | Failure:
        """Raises TakesLong on the event loop."""
        batch = chunk.batch
        model = str(batch.params.get("model") or self._default_model)
        defaults = Defaults(self._source, model, Priority.BACKGROUND, batch.tenant, trusts_tenant=batch.trusts_tenant)
        try:
            kind, read = self._forms[batch.endpoint]
            body = body_of(decoded(chunk.raws[place]), batch.params)
            message, answer = _as_json(read(body, defaults, chunk.lines.request_id(place)))
            request = parse(
                kind,
                message,
                defaults,
                Origin(chunk, place, answer),
                received_s=now_s,
                wall_s=wall_s,
                deadline_s=now_s + batch.expires_s - wall_s,
            )
        except TakesLong:
            raise
        except TokenbatchError as error:
            return Failure.of(error)
        except Exception:  # noqa: BLE001 - an unexpected error in one line must not stop the others
            _LOG.exception("a line could not be read")
            return _INTERNAL
        request.priority = Priority.BACKGROUND  # whatever its body says
        return request


def _as_json(found: tuple[Any, Answer]) -> tuple[Any, Answer]:
    """Raises FieldError for an answer that cannot be a part of a line."""
    if found[1].content_type != "application/json":
        raise FieldError("a line of a file is JSON: ask for float or base64", "encoding_format")
    return found


def slices(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Split the requests into slices, each answered in one turn of the event loop; a long answer is alone in one."""
    begin = size_bytes = 0
    for place, request in enumerate(requests):
        own_bytes = 0 if request.failed else origin_of(request).answer.size_bytes(request)
        if place > begin and (place - begin >= SLICE_LINES or size_bytes + own_bytes > _SLICE_BYTES):
            yield requests[begin:place]
            begin, size_bytes = place, 0
        size_bytes += own_bytes
    yield requests[begin:]


async def answer_all(requests: Sequence[Request]) -> None:
    """Write the answers, long ones off the event loop: numbers as JSON take long."""
    for request in requests:
        origin = origin_of(request)
        write = partial(_written, request)
        long = not request.failed and origin.answer.takes_long(request)
        written = await in_slow_lane(write) if long else write()
        lines, place = origin.chunk.lines, origin.place
        if not lines.is_open(place):  # its batch was cancelled
            continue
        if isinstance(written, Failure):
            lines.fail(place, written)
        else:
            lines.answer(place, request.request_id, *written)


def _written(request: Request) -> tuple[bytes, int, int] | Failure:
    """The body of an answer, and the tokens that were read and made for it."""
    answer = origin_of(request).answer
    try:
        failure = answer.failure(request)
        return failure if failure is not None else (answer.write(request), *answer.tokens(request))
    except TokenbatchError as error:
        return Failure.of(error)
    except Exception:  # noqa: BLE001 - an unexpected error in one line must not stop the others
        _LOG.exception("a line could not be answered")
        return _INTERNAL
