"""The same work as an aggregator's with nothing around it: fetch, decode, tokenize, one call a batch, build, send.

What it does without: order of commits, deadlines, priorities, retries, bounds, metrics. Its CPU time per query is
what the libraries cost; the aggregator's is measured against it.

    python -m loadtest.bench.bare_loop --bootstrap HOST:PORT --modelserver HOST:PORT --requests T --replies T
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

import grpc
import numpy as np
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from aggregator.adapters.fast_tokenizer import FastTokenizer
from loadtest.bench.instant_modelserver import DIMENSIONS, MODEL, tokenizer_folder
from protos.embedding.v1 import embedding_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2 as ms
from protos.modelserver.v1 import modelserver_pb2_grpc

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_RECORDS = 1000
_ROW_BYTES = DIMENSIONS * 4


class BareLoop:
    """One fetch after the other, each carried through to its replies."""

    def __init__(
        self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, server: Any, replies: str, token_budget: int
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._server = server
        self._replies = replies
        self._token_budget = token_budget
        self._tokenizer = FastTokenizer(tokenizer_folder())
        self._worker = ThreadPoolExecutor(1)
        self._partitions = cycle(range(8))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            fetched = await self._consumer.getmany(timeout_ms=200, max_records=_RECORDS)
            records = [record for partition in fetched.values() for record in partition]
            if records:
                await self._answer(records)

    async def _answer(self, records: Sequence[Any]) -> None:
        requests = [pb.EmbedRequest.FromString(record.value) for record in records]
        texts = [request.inputs[0].text for request in requests]
        tokens = await asyncio.get_running_loop().run_in_executor(self._worker, self._tokenizer.count, texts)
        ends = np.cumsum(tokens.lengths)
        first = token = 0
        sent: list[asyncio.Future[Any]] = []
        while first < len(records):
            after = max(first + 1, int(np.searchsorted(ends, token + self._token_budget, "right")))
            token_after = int(ends[after - 1])
            answer = await self._server.EmbedBatch(
                ms.EmbedBatchRequest(
                    model=MODEL,
                    token_ids=tokens.ids[token:token_after].tobytes(),
                    lengths=tokens.lengths[first:after].tobytes(),
                )
            )
            lengths = tokens.lengths[first:after].tolist()
            sent.append(await self._send(records[first:after], requests[first:after], lengths, answer))
            first, token = after, token_after
        await asyncio.gather(*sent)

    async def _send(
        self, records: Sequence[Any], requests: Sequence[pb.EmbedRequest], lengths: Sequence[int], answer: Any
    ) -> asyncio.Future[Any]:
        batch = self._producer.create_batch()
        rows = answer.embeddings
        for row, (record, request, length) in enumerate(zip(records, requests, lengths, strict=True)):
            response = pb.EmbedResponse(
                request_id=request.request_id, model=MODEL, model_revision="instant", batch_id="b"
            )
            embedding = response.embeddings.add()
            embedding.embedding = rows[row * _ROW_BYTES : (row + 1) * _ROW_BYTES]
            embedding.dimensions = DIMENSIONS
            embedding.encoding = pb.ENCODING_FLOAT32
            embedding.token_count = length
            headers = [("content-type", b"application/x-protobuf")]
            value = response.SerializeToString()
            batch.append(timestamp=None, key=record.key, value=value, headers=headers)
        acknowledged: asyncio.Future[Any] = await self._producer.send_batch(
            batch, self._replies, partition=next(self._partitions)
        )
        return acknowledged


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(
                options.modelserver,
                options=[
                    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                ],
            )
        )
        consumer = await stack.enter_async_context(
            AIOKafkaConsumer(
                options.requests,
                bootstrap_servers=options.bootstrap,
                group_id=options.group,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=4 * 1024 * 1024,
                auto_commit_interval_ms=200,
            )
        )
        producer = await stack.enter_async_context(
            AIOKafkaProducer(
                bootstrap_servers=options.bootstrap,
                enable_idempotence=True,
                acks="all",
                max_batch_size=64 * 1024 * 1024,
                max_request_size=64 * 1024 * 1024,
            )
        )
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        loop = BareLoop(consumer, producer, stub, options.replies, options.token_budget)
        work = asyncio.create_task(loop.run(), name="bare loop")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await asyncio.wait([work])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.bare_loop", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--modelserver", required=True)
    parser.add_argument("--requests", required=True, help="topic to read from its start")
    parser.add_argument("--replies", required=True, help="topic to write to, of 8 partitions")
    parser.add_argument("--group", default="bare-loop")
    parser.add_argument("--token-budget", type=int, default=2048)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
