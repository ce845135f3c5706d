"""A chunk on its way: the requests of its lines, read as the HTTP door reads bodies, and their answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aggregator.errors import Code, TokenbatchError
from aggregator.request.request import Defaults, Failure, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.answer import Answer, Form
from aggregator.sources.http.errors import FieldError
from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.sources.wire.message import parse
from aggregator.wings.batches.answers import End, Lines
from aggregator.wings.batches.lines import body_of, decoded, lines_of
from aggregator.wings.batches.objects import Batch, Pointer, part_path

_LOG = logging.getLogger(__name__)
_INTERNAL = Failure(Code.INTERNAL, "internal error: see the log of the aggregator")


@dataclass(eq=False, slots=True)
class Chunk:
    """A chunk whose lines are being computed. `raws`: the lines as they came. `ended`: no line of it is waited for."""

    pointer: Pointer
    record: InFlightRecord
    batch: Batch
    lines: Lines
    raws: Sequence[bytes]
    tries: dict[int, int] = field(default_factory=dict)
    ended: bool = False

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

    def chunk(self, pointer: Pointer, record: InFlightRecord, batch: Batch, data: bytes, why: End | None) -> Chunk:
        """A chunk of these bytes; its lines end at once where there is a reason why."""
        raws = [*lines_of(data)]
        lines = Lines(pointer.batch, pointer.chunk, [decoded(raw).custom_id for raw in raws])
        if why is not None:
            lines.end_all(why)
        return Chunk(pointer, record, batch, lines, raws)

    def requests(self, chunk: Chunk, places: Sequence[int], now_s: float, wall_s: float) -> Iterator[Request]:
        """The requests of the lines at these places; a line that is none has failed then."""
        batch = chunk.batch
        deadline_s = now_s + batch.expires_s - wall_s
        model = str(batch.params.get("model") or self._default_model)
        defaults = Defaults(self._source, model, Priority.BACKGROUND, batch.tenant, trusts_tenant=batch.trusts_tenant)
        kind, read = self._forms[batch.endpoint]
        for place in places:
            try:
                body = body_of(decoded(chunk.raws[place]), batch.params)
                message, answer = _as_json(read(body, defaults, chunk.lines.request_id(place)))
                request = parse(
                    kind,
                    message,
                    defaults,
                    Origin(chunk, place, answer),
                    received_s=now_s,
                    wall_s=wall_s,
                    deadline_s=deadline_s,
                )
                request.priority = Priority.BACKGROUND  # whatever its body says
                yield request
            except TokenbatchError as error:
                chunk.lines.fail(place, Failure.of(error))
            except Exception:  # noqa: BLE001 - an unexpected error in one line must not stop the others
                _LOG.exception("a line could not be read")
                chunk.lines.fail(place, _INTERNAL)


def _as_json(found: tuple[Any, Answer]) -> tuple[Any, Answer]:
    """Raises FieldError for an answer that cannot be a part of a line."""
    if found[1].content_type != "application/json":
        raise FieldError("a line of a file is JSON: ask for float or base64", "encoding_format")
    return found


def answer_all(requests: Sequence[Request]) -> None:
    """Write the answers, off the event loop: numbers as JSON take long."""
    for request in requests:
        origin = origin_of(request)
        lines, place = origin.chunk.lines, origin.place
        if not lines.is_open(place):  # its batch was cancelled
            continue
        try:
            failure = origin.answer.failure(request)
            if failure is None:
                body, (tokens, new_tokens) = origin.answer.write(request), origin.answer.tokens(request)
                lines.answer(place, request.request_id, body, tokens, new_tokens)
            else:
                lines.fail(place, failure)
        except TokenbatchError as error:
            lines.fail(place, Failure.of(error))
        except Exception:  # noqa: BLE001 - an unexpected error in one line must not stop the others
            _LOG.exception("a line could not be answered")
            lines.fail(place, _INTERNAL)
