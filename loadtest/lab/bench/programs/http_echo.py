"""The least that the aggregator's HTTP server can do: read a body, answer with the bytes of one vector, on uvloop.

python -m loadtest.lab.bench.programs.http_echo 8000
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode

import numpy as np
import uvloop
from aiohttp import web

from loadtest.lab.bench.programs.echo import DIMENSIONS

_VECTOR = b64encode(np.random.default_rng(0).standard_normal(DIMENSIONS).astype("<f4").tobytes()).decode()
_BODY = json.dumps(
    {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": _VECTOR}],
        "model": "all-minilm-l6-v2",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    },
    separators=(",", ":"),
).encode()
_HEADERS = {
    "server-timing": "queue;dur=1.00, batch;dur=1.00, inference;dur=30.00",
    "x-tokenbatch-queued-ms": "1.00",
    "x-tokenbatch-batched-ms": "1.00",
    "x-tokenbatch-inference-ms": "30.00",
    "x-request-id": "0123456789abcdef0123456789abcdef",
    "content-type": "application/json",
    "openai-processing-ms": "33",
}
"""Those of the aggregator's response."""


async def answer(http: web.BaseRequest) -> web.StreamResponse:
    await http.read()
    return web.Response(body=_BODY, headers=_HEADERS)


async def serve(port: int) -> None:
    server = web.Server(answer, handler_cancellation=True, access_log=None, auto_decompress=False)
    listener = await asyncio.get_running_loop().create_server(server, "localhost", port)
    await listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
