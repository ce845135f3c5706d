"""Ask questions through Redis: an entry of the request stream each, and a list for the reply of each."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from redis import Redis, RedisError

from protos.embedding.v1 import embedding_pb2 as pb

_REQUESTS = "embed.requests.v1"
_TIMEOUT_S = 60.0


class RedisRunError(Exception):
    """Redis did not do what it was asked."""


def through_redis(address: str, questions: Sequence[str], timeout_s: float = _TIMEOUT_S) -> int:
    """How many of the questions got a vector. Raises RedisRunError."""
    host, _, port = address.rpartition(":")
    run_id = secrets.token_hex(4)
    client: Any = Redis(host=host, port=int(port))
    try:
        with client:
            for number, text in enumerate(questions):
                request = pb.EmbedRequest(request_id=f"{run_id}-{number}", inputs=[pb.Input(text=text)])
                entry = {"value": request.SerializeToString(), "reply_to": f"list:{run_id}"}
                client.xadd(_REQUESTS, entry)
            answered: set[str] = set()
            while len(answered) < len(questions):
                found = client.blpop([run_id], timeout_s)
                if found is None:
                    break
                reply = pb.EmbedResponse.FromString(found[1])
                if reply.status.code:
                    raise RedisRunError(f"a question was answered {reply.status.code}: {reply.status.message}")
                answered.add(reply.request_id)
            return len(answered)
    except RedisError as error:
        raise RedisRunError(f"Redis at {address} did not serve: {error}") from error
