"""sentence-transformers behind FastAPI, with batches by size and wait: what is quickly written, and widely run.

It speaks OpenAI's embeddings API with base64. It runs in an environment of the peers, so it imports nothing of ours.

    python loadtest/bench/programs/fastapi_server.py --model FOLDER --dtype float32 --host 127.0.0.1 --port 8000

--int8 onnx or openvino quantizes the model at the first start, and keeps it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from base64 import b64encode
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import (
    SentenceTransformer,
    export_dynamic_quantized_onnx_model,
    export_static_quantized_openvino_model,
)

_SIZE, _WAIT_S = 32, 0.010
_CPU = Path("/proc/cpuinfo")


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


def onnx(model: Path, kept: Path) -> SentenceTransformer:
    """By ONNX Runtime with int8 weights; activations are quantized as they come."""
    arch: Literal["avx512_vnni", "avx2"] = "avx512_vnni" if "avx512_vnni" in _CPU.read_text() else "avx2"
    file = f"model_qint8_{arch}.onnx"
    if not (kept / "onnx" / file).exists():
        _copy(model, kept)
        whole = SentenceTransformer(str(kept), backend="onnx", device="cpu", model_kwargs={"export": True})
        export_dynamic_quantized_onnx_model(whole, arch, str(kept))
    return SentenceTransformer(str(kept), backend="onnx", device="cpu", model_kwargs={"file_name": file})


def openvino(model: Path, kept: Path, texts: Path) -> SentenceTransformer:
    """By OpenVINO with weights and activations in int8, calibrated by the lines of files in `texts`."""
    file = "openvino_model_qint8_quantized.xml"
    if not (kept / "openvino" / file).exists():
        _copy(model, kept)
        whole = SentenceTransformer(str(kept), backend="openvino", device="cpu", model_kwargs={"export": True})
        export_static_quantized_openvino_model(
            whole,
            None,
            str(kept),
            dataset_name=str(texts),
            dataset_config_name="default",
            dataset_split="train",
            column_name="text",
        )
    return SentenceTransformer(str(kept), backend="openvino", device="cpu", model_kwargs={"file_name": file})


def _copy(model: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(model, kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="its folder")
    parser.add_argument("--dtype", default="float32", help="of torch")
    parser.add_argument("--int8", choices=["onnx", "openvino"], help="what computes, instead of torch")
    parser.add_argument("--kept", type=Path, help="where the quantized model is kept")
    parser.add_argument("--texts", type=Path, help="a folder with a file of texts, for OpenVINO's calibration")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    if options.int8 == "onnx":
        embedder = onnx(options.model, options.kept)
    elif options.int8 == "openvino":
        embedder = openvino(options.model, options.kept, options.texts)
    else:
        dtype = {"torch_dtype": getattr(torch, options.dtype)}
        embedder = SentenceTransformer(str(options.model), device="cpu", model_kwargs=dtype)
    uvicorn.run(app(Batcher(embedder)), host=options.host, port=options.port, access_log=False)
