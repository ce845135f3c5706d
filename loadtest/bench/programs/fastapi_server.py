"""sentence-transformers behind FastAPI, with batches by size and wait: what is quickly written, and widely run.

It speaks OpenAI's embeddings API with base64. It runs in the environment of the peers, so it imports nothing of ours.

    python loadtest/bench/programs/fastapi_server.py --model FOLDER --size 32 --wait-ms 10 --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Wanted(BaseModel):
    """A request; other fields of OpenAI's are ignored."""

    input: list[str]


class Batcher:
    """Texts wait until there are `size` of them, or until the first has waited for `wait_s`."""

    def __init__(self, model: SentenceTransformer, size: int, wait_s: float) -> None:
        self._model = model
        self._size = size
        self._wait_s = wait_s
        self._waiting: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1)

    async def embed(self, text: str) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._waiting.put((text, answer))
        return await answer

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            vectors = await loop.run_in_executor(self._worker, self._encode, [text for text, _ in batch])
            for (_, answer), vector in zip(batch, vectors, strict=True):
                answer.set_result(vector)

    async def _gather(self) -> list[tuple[str, asyncio.Future[str]]]:
        batch = [await self._waiting.get()]
        try:
            async with asyncio.timeout(self._wait_s):
                while len(batch) < self._size:
                    batch.append(await self._waiting.get())
        except TimeoutError:
            pass
        return batch

    def _encode(self, texts: list[str]) -> list[str]:
        vectors = self._model.encode(texts, batch_size=self._size, convert_to_numpy=True, show_progress_bar=False)
        return [b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]


def app(batcher: Batcher) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    served = FastAPI(lifespan=lifespan)

    @served.post("/v1/embeddings")
    async def embeddings(wanted: Wanted) -> dict[str, list[dict[str, str]]]:
        vectors = await asyncio.gather(*map(batcher.embed, wanted.input))
        return {"data": [{"embedding": vector} for vector in vectors]}

    @served.get("/health")
    async def health() -> str:
        return "ok"

    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", type=int, default=32, help="texts of a batch at the most (%(default)s)")
    parser.add_argument("--wait-ms", type=float, default=10.0, help="for them, after the first (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = SentenceTransformer(options.model, device="cpu", model_kwargs={"torch_dtype": dtype})
    batcher = Batcher(model, options.size, options.wait_ms / 1e3)
    uvicorn.run(app(batcher), host=options.host, port=options.port, access_log=False)


if __name__ == "__main__":
    main()
