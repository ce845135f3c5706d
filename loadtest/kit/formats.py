"""A record's value in each format of the wire contract."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from google.protobuf import json_format
from tokenbatch_client.kafka import JSON, PROTOBUF, Request
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb


class Format(StrEnum):
    """How a request's value is written; the reply to TEXT comes as JSON."""

    PROTOBUF = "protobuf"
    JSON = "json"
    TEXT = "text"


def record(request: pb.EmbedRequest, style: Format) -> Request:
    """Of a request of one text; a plain text carries nothing else but its expiry, in a header."""
    if style is Format.PROTOBUF:
        return request.request_id, request.SerializeToString(), [PROTOBUF]
    if style is Format.JSON:
        return request.request_id, json_format.MessageToJson(request, indent=None).encode(), [JSON]
    headers = [("content-type", b"text/plain")]
    if request.HasField("expire_time"):
        expiry = datetime.fromtimestamp(request.expire_time.ToMicroseconds() / 1e6, UTC)
        headers.append(("ce_expirytime", expiry.isoformat().encode()))
    return request.request_id, request.inputs[0].text.encode(), headers
