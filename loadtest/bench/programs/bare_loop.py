"""The same work as an aggregator's with nothing around it: fetch, decode, tokenize, one call a batch, build, send.

What it does without: order of commits, deadlines, priorities, retries, bounds, metrics. Its CPU time per query is
what the libraries cost; the aggregator's is measured against it.

    python -m loadtest.bench.programs.bare_loop --bootstrap HOST:PORT --modelserver HOST:PORT --requests T
        --replies T
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import grpc
import numpy as np
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from aggregator.sources.kafka.outgoing import partitions_by_key
from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.fast_tokenizer.fast_path import fast_path
from loadtest.bench.setting import PARTITIONS
from loadtest.stack.instant_modelserver import DIMENSIONS, MESSAGE_LIMITS, MODEL, tokenizer_folder
from protos.embedding.v1 import embedding_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2 as ms
from protos.modelserver.v1 import modelserver_pb2_grpc

_MAX_BYTES = 64 * 1024 * 1024
_RECORDS = 1000
_ROW_BYTES = DIMENSIONS * 4
HEADERS = [("content-type", b"application/x-protobuf")]
_SOME_ID = "0123456789abcdef0123456789abcdef"


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
        self._tokenizer = Tokenizer(tokenizer_folder(), fast_path(lambda *_: None))
        self._worker = ThreadPoolExecutor(1)

    async def run(self) -> None:
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
            sent += await self._send(records[first:after], requests[first:after], lengths, answer.embeddings)
            first, token = after, token_after
        await asyncio.gather(*sent)

    async def _send(
        self, records: Sequence[Any], requests: Sequence[pb.EmbedRequest], lengths: Sequence[int], rows: bytes
    ) -> list[asyncio.Future[Any]]:
        """One Kafka batch for each partition, chosen by key as every client does."""
        batches: dict[int, Any] = {}
        partitions = partitions_by_key([record.key for record in records], PARTITIONS)
        for row, partition in enumerate(partitions):
            batch = batches.get(partition)
            if batch is None:
                batch = batches[partition] = self._producer.create_batch()
            embedding = rows[row * _ROW_BYTES : (row + 1) * _ROW_BYTES]
            value = reply(requests[row].request_id, embedding, lengths[row])
            batch.append(timestamp=None, key=records[row].key, value=value, headers=HEADERS)
        return [
            await self._producer.send_batch(batch, self._replies, partition=partition)
            for partition, batch in batches.items()
        ]


def reply(request_id: str, vector: bytes, token_count: int) -> bytes:
    """A reply with every field that the aggregator's have; what does not come from the engine is made up."""
    response = pb.EmbedResponse(
        request_id=request_id, model=MODEL, model_revision="instant", batch_id=_SOME_ID, reply_id=_SOME_ID
    )
    embedding = response.embeddings.add()
    embedding.embedding = vector
    embedding.dimensions = DIMENSIONS
    embedding.encoding = pb.ENCODING_FLOAT32
    embedding.token_count = token_count
    embedding.status.SetInParent()
    response.status.SetInParent()
    timings = response.timings
    timings.queued.nanos = timings.batched.nanos = timings.inference.nanos = 1_000_000
    return response.SerializeToString()


async def serve(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(
                options.modelserver,
                options=MESSAGE_LIMITS,
            )
        )
        consumer = await stack.enter_async_context(
            AIOKafkaConsumer(
                options.requests,
                bootstrap_servers=options.bootstrap,
                group_id=options.replies,
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
                max_batch_size=_MAX_BYTES,
                max_request_size=_MAX_BYTES,
            )
        )
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        await BareLoop(consumer, producer, stub, options.replies, options.token_budget).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--modelserver", required=True)
    parser.add_argument("--requests", required=True, help="topic to read from its start")
    parser.add_argument("--replies", required=True, help="topic to write to; the consumer group has its name")
    parser.add_argument("--token-budget", type=int, required=True)
    uvloop.run(serve(parser.parse_args()))
