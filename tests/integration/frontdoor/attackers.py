"""Callers who mean harm, in a process of their own: `python -m tests.integration.frontdoor.attackers`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from threading import Thread
from typing import Any, cast

import grpc

from protos.embedding.v1 import embedding_pb2 as pb


def long_ids(count: int) -> bytes:
    """One input of so many token ids."""
    return pb.EmbedRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[7] * count))]).SerializeToString()


MESSAGES = {
    "empty inputs": lambda: b"\x22\x00" * 2_097_142,
    "short inputs": lambda: b"\x22\x03\x0a\x01a" * 838_850,
    "token ids": lambda: long_ids(4_194_190),
    "broken after inputs": lambda: b"\x22\x03\x0a\x01a" * 1000 + b"\x1a\xff\xff\x03" + b"r" * 65_535 + b"\x07",
    "not UTF-8": lambda: pb.EmbedRequest(inputs=[pb.Input(text="a" * 1_000_000)]).SerializeToString() + b"\x0a\x01\xff",
}


async def attack(address: str, kind: str, *, clients: int, seconds: float) -> Mapping[str, int]:
    """Send one kind of message from so many connections, each as often as it can; what came of it."""
    told = [address, kind, str(clients), str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.frontdoor.attackers", *told), stdout=asyncio.subprocess.PIPE
    )
    written, _ = await process.communicate()
    found: dict[str, int] = json.loads(written)
    return found


def _main(address: str, kind: str, clients: str, seconds: str) -> None:
    message, found = MESSAGES[kind](), Counter[str]()
    end_s = time.monotonic() + float(seconds)

    def call_on() -> None:
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            embed: Any = channel.unary_unary("/embedding.v1.Embeddings/Embed")
            while time.monotonic() < end_s:
                try:
                    embed(message, timeout=60)
                    found["OK"] += 1
                except grpc.RpcError as error:
                    found[cast("grpc.Call", error).code().name] += 1

    threads = [Thread(target=call_on) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
