"""What many run today: a consumer that fetches, calls an embeddings server with this many texts at a time, and replies.

Offsets are committed once the replies of a batch are acknowledged. It has no deadlines, priorities, retries or bounds.

    python -m loadtest.bench.programs.plain_consumer --bootstrap HOST:PORT --url URL --requests T --replies T
        --batch 64
"""

from __future__ import annotations

import argparse
import asyncio
from base64 import b64decode
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from loadtest.bench.programs.bare_loop import HEADERS, reply
from loadtest.stack.instant_modelserver import MODEL
from protos.embedding.v1 import embedding_pb2 as pb

_TIMEOUT_S = 120.0


async def consume(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S), raise_for_status=True)
        )
        consumer = await stack.enter_async_context(
            AIOKafkaConsumer(
                options.requests,
                bootstrap_servers=options.bootstrap,
                group_id=options.replies,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
        )
        producer = await stack.enter_async_context(
            AIOKafkaProducer(bootstrap_servers=options.bootstrap, enable_idempotence=True, acks="all")
        )
        while True:
            fetched = await consumer.getmany(timeout_ms=200, max_records=options.batch)
            records = [record for partition in fetched.values() for record in partition]
            if records:
                requests = [pb.EmbedRequest.FromString(record.value or b"") for record in records]
                vectors = await _embed(session, options.url, [request.inputs[0].text for request in requests])
                sent = [
                    await producer.send(
                        options.replies, reply(request.request_id, vector, 0), key=record.key, headers=HEADERS
                    )
                    for record, request, vector in zip(records, requests, vectors, strict=True)
                ]
                await asyncio.gather(*sent)
                await consumer.commit()


async def _embed(session: aiohttp.ClientSession, url: str, texts: Sequence[str]) -> list[bytes]:
    """Each text's vector, float32; as base64, as OpenAI's own client asks for them."""
    wanted = {"model": MODEL, "input": texts, "encoding_format": "base64"}
    async with session.post(url, json=wanted) as response:
        found: list[dict[str, Any]] = (await response.json())["data"]
    return [b64decode(each["embedding"]) for each in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--url", required=True, help="of an embeddings API as OpenAI's")
    parser.add_argument("--requests", required=True, help="topic to read from its start")
    parser.add_argument("--replies", required=True, help="topic to write to; the consumer group has its name")
    parser.add_argument("--batch", type=int, required=True, help="texts of a call at the most")
    uvloop.run(consume(parser.parse_args()))
