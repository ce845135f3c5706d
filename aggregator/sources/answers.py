"""Encode the value of a reply that a broker keeps, as protobuf or JSON: Kafka's and Redis's are the same."""

from __future__ import annotations

import logging

from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.sources import generation
from aggregator.sources.response import MAX_ECHOED, fill_status, json_of, response, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1 import generation_pb2

_LOG = logging.getLogger(__name__)
_UNENCODABLE = Failure(Code.INTERNAL, "the reply could not be encoded")


def encode(request: Request, reply_id: str, now_s: float, *, as_json: bool) -> bytes:
    """The reply to a completed request; `now_s`: when its generation, if it is one, was complete."""
    try:
        if request.generation is not None:
            answer = generation.whole(request, reply_id, now_s)
            return json_of(answer) if as_json else answer.SerializeToString()
        return json_of(response(request, reply_id)) if as_json else to_protobuf(request, reply_id)
    except Exception:  # noqa: BLE001 - an unexpected error in one reply must not stop the others
        _LOG.exception("a reply could not be encoded")
        generates = request.generation is not None
        return encode_failure(request.request_id, _UNENCODABLE, reply_id, generates=generates, as_json=as_json)


def encode_failure(request_id: str, failure: Failure, reply_id: str, *, generates: bool, as_json: bool) -> bytes:
    """The reply to what did not become a request, or has none that can be encoded."""
    request_id = request_id[:MAX_ECHOED]
    answer: pb.EmbedResponse | generation_pb2.GenerateResponse
    if generates:
        answer = generation.refusal(request_id, "", failure, reply_id)
    else:
        answer = pb.EmbedResponse(request_id=request_id, reply_id=reply_id)
        fill_status(answer.status, failure)
    return json_of(answer) if as_json else answer.SerializeToString()


def internal_failure(request: Request) -> Failure | None:
    """The first failure that is not the sender's fault, if there is one: what was sent becomes a dead letter too."""
    failures = (outcome for outcome in request.outcomes if isinstance(outcome, Failure))
    return next((failure for failure in failures if failure.code is Code.INTERNAL), None)
