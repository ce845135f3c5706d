"""CloudEvents 1.0 on Kafka: the data of a structured event, and replies that are events because their requests were."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from aggregator.errors import Undecodable
from aggregator.request.kind import Kind
from aggregator.sources.kafka.envelope import Envelope, EnvelopeFormat
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.wire.encode import MAX_ECHOED
from aggregator.sources.wire.message import check_marks, json_object
from aggregator.sources.wire.values import JSON

_ATTRIBUTES: Final = {"ce_id": "id", "ce_expirytime": "expirytime", "ce_correlationid": "correlationid"}
"""The headers of a binary event that are read, beside its version; and their names in a structured event."""
_VERSION_HEADER: Final = "ce_specversion"
_STRUCTURED: Final = b"application/cloudevents+json"
_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class AskingEvent(Envelope):
    """The attributes that a reply takes of the event that it replies to. `holds_value`: it is structured."""

    holds_value: bool
    event_id: str
    correlation_id: str

    @override
    def opened(self, value: bytes, max_inputs: int) -> tuple[bytes, Mapping[str, bytes], AskingEvent]:
        data, attributes = _opened(value, max_inputs)
        return data, attributes, _of_attributes(attributes, holds_value=True)

    @override
    def reply(
        self, value: bytes, headers: Sequence[Header], *, reply_id: str, group_id: str, kind: Kind, request_id: str
    ) -> tuple[bytes, Sequence[Header]]:
        attributes = {
            "specversion": _VERSION,
            "id": reply_id,
            "source": _source(group_id),
            "type": kind.response.DESCRIPTOR.full_name,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        optional = {
            "subject": request_id[:MAX_ECHOED],
            "causationid": self.event_id,
            "correlationid": self.correlation_id,
        }
        attributes |= {name: text for name, text in optional.items() if text and text.isprintable()}
        if not self.holds_value:
            return value, [*headers, *((f"ce_{name}", text.encode()) for name, text in attributes.items())]
        head = json.dumps({**attributes, "datacontenttype": JSON.decode()}, ensure_ascii=False)
        return head[:-1].encode() + b', "data": ' + value + b"}", [("content-type", _STRUCTURED), *headers[1:]]


def _asking_event(found: Mapping[str, bytes]) -> AskingEvent | None:
    """The event of a record with these headers; None if it is no event."""
    structured = (found.get("content-type") or b"").partition(b";")[0].strip().lower() == _STRUCTURED
    if not structured and found.get(_VERSION_HEADER) != _VERSION.encode():
        return None
    return _of_attributes(found, holds_value=structured)


def _of_attributes(found: Mapping[str, bytes], *, holds_value: bool) -> AskingEvent:
    event_id, correlation_id = (
        (found.get(name) or b"").decode(errors="replace") for name in ("ce_id", "ce_correlationid")
    )
    return AskingEvent(holds_value, event_id, correlation_id)


CLOUD_EVENTS = EnvelopeFormat(frozenset({"content-type", _VERSION_HEADER, *_ATTRIBUTES}), _asking_event)


def _opened(value: bytes, max_inputs: int) -> tuple[bytes, dict[str, bytes]]:
    """The data of a structured event, and the headers of the binary event that says the same.

    Raises InvalidRequest or Undecodable.
    """
    check_marks(value, max_inputs)
    event = json_object(value)
    if event.get("specversion") != _VERSION:
        raise Undecodable(f"the value is not a CloudEvent in JSON with specversion {_VERSION}")
    headers: dict[str, bytes] = {}
    for header, name in {**_ATTRIBUTES, "content-type": "datacontenttype"}.items():
        text = event.get(name, "")
        if not isinstance(text, str):
            raise Undecodable(f"the event's {name} is not a string")
        headers[header] = text.encode(errors="replace")
    headers["content-type"] = headers["content-type"] or JSON
    return _data(event, is_text=not headers["content-type"].lower().startswith(JSON)), headers


def _data(event: Mapping[str, object], *, is_text: bool) -> bytes:
    data, encoded = event.get("data"), event.get("data_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError:
            raise Undecodable("the event's data_base64 is not base64") from None
    if data is None:
        raise Undecodable("the event has neither data nor data_base64, a string in base64")
    try:
        text = data if is_text and isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    except RecursionError:
        raise Undecodable("the event's data is nested too deeply") from None
    return text.encode(errors="surrogatepass")  # half a pair is refused where the data is read


@lru_cache(maxsize=8)
def _source(group_id: str) -> str:
    return f"/tokenbatch/{quote(group_id, safe='')}"
