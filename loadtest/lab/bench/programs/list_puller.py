"""The queue as Voyage AI describes theirs: a Redis list, from which a model server pulls batches by a Lua script.

An element is the number of tokens (uint32, little endian) and an EmbedRequest. One script pops elements while their
tokens fit the budget; the batch is computed, and its replies are pushed to another list. Nobody stands between: there
are no priorities, retries or deadlines, and what was popped is lost with this process.

    python -m loadtest.lab.bench.programs.list_puller --redis HOST:PORT --server HOST:PORT --token-budget 512
"""

from __future__ import annotations

import argparse
from typing import Any

import grpc.aio
import numpy as np
import uvloop
from redis.asyncio import Redis

from aggregator.tokenizers.tokenizer import Tokenizer
from loadtest.lab.bench.programs.bare_loop import reply
from loadtest.stack.instant_modelserver import MESSAGE_LIMITS, tokenizer_folder
from protos.embedding.v1 import embedding_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc

REQUESTS, REPLIES = "embed.queue", "embed.answers"
HEAD_BYTES = 4
_WAIT_S = 1.0
_TIMEOUT_S = 120.0
_PULL = """
local budget, tokens, count = tonumber(ARGV[1]), 0, 0
local elements = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)
local taken = {}
for _, element in ipairs(elements) do
  tokens = tokens + struct.unpack('<I4', element)
  if tokens > budget and count > 0 then break end
  count = count + 1
  taken[count] = element
end
if count > 0 then redis.call('LTRIM', KEYS[1], count, -1) end
return taken
"""


async def pull(options: argparse.Namespace) -> None:
    host, _, port = options.redis.rpartition(":")
    tokenizer = Tokenizer(tokenizer_folder())
    client: Any = Redis(host=host, port=int(port))
    async with client, grpc.aio.insecure_channel(options.server, options=MESSAGE_LIMITS) as channel:
        server: Any = modelserver_pb2_grpc.ModelServerStub(channel)
        described = await server.Describe(modelserver_pb2.DescribeRequest(), timeout=_TIMEOUT_S)
        script = client.register_script(_PULL)
        most = described.step_query_capacity
        while True:
            taken: list[bytes] = await script(keys=[REQUESTS], args=[options.token_budget, most])
            if not taken:
                first = await client.blpop([REQUESTS], _WAIT_S)
                if first is None:
                    continue
                taken = [first[1]]  # what came with it is in the next batch
            requests = [pb.EmbedRequest.FromString(element[HEAD_BYTES:]) for element in taken]
            tokens = tokenizer.count([request.inputs[0].text for request in requests])
            answer = await server.EmbedBatch(
                modelserver_pb2.EmbedBatchRequest(
                    model=described.model,
                    model_revision=described.model_revision,
                    token_ids=tokens.ids.tobytes(),
                    lengths=tokens.lengths.astype("<i4").tobytes(),
                    max_step_tokens=max(options.token_budget, int(tokens.lengths.sum())),
                ),
                timeout=_TIMEOUT_S,
            )
            rows = np.frombuffer(answer.embeddings, "<f4").reshape(len(requests), answer.dimensions)
            replies = [
                reply(request.request_id, row.tobytes(), int(length))
                for request, row, length in zip(requests, rows, tokens.lengths, strict=True)
            ]
            await client.rpush(REPLIES, *replies)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--server", required=True, help="the model server")
    parser.add_argument("--token-budget", type=int, required=True)
    uvloop.run(pull(parser.parse_args()))
