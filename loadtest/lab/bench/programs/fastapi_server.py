"""sentence-transformers behind FastAPI, with batches by size and wait: what is quickly written, and widely run.

It speaks OpenAI's embeddings API with base64. It runs in the environment of the peers, so it imports nothing of ours.

    python loadtest/lab/bench/programs/fastapi_server.py --model FOLDER --dtype float32 --host 127.0.0.1 --port 8000
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

_SIZE, _WAIT_S = 32, 0.010


class Wanted(BaseModel):
    """A request; other fields of OpenAI's are ignored."""

    input: list[str]


class Batcher:
    """Texts wait until there are 32 of them, or until the first has waited for 10 ms."""

    def __init__(self, model: SentenceTransformer) -> None:
        self._model = model
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
            async with asyncio.timeout(_WAIT_S):
                while len(batch) < _SIZE:
                    batch.append(await self._waiting.get())
        except TimeoutError:
            pass
        return batch

    def _encode(self, texts: list[str]) -> list[str]:
        vectors = self._model.encode(texts, batch_size=_SIZE, convert_to_numpy=True, show_progress_bar=False)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its folder")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = SentenceTransformer(options.model, device="cpu", model_kwargs={"torch_dtype": dtype})
    uvicorn.run(app(Batcher(model)), host=options.host, port=options.port, access_log=False)
