"""Serve a small model of each shape behind an aggregator, beside transformers, and write how far they are apart.

Each is served as an old sentence-transformers saved it, and those that are named as the newest does. Started by
`test_models.py`: `python -m tests.integration.modelserver.run_families FOLDER SHAPE ...`. All model servers, and those
of `run_scoring`, run in this process, one after the other: importing vLLM takes longer than what is done here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import grpc  # noqa: E402 - vLLM reads its environment when it is imported
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402
import uvloop  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from k8s.pod import telemetry as process_telemetry  # noqa: E402
from k8s.pod.telemetry import TelemetrySettings  # noqa: E402
from loadtest.stack.ports import free_ports  # noqa: E402
from loadtest.stack.service import without_kafka  # noqa: E402
from modelserver import model_files  # noqa: E402
from modelserver.app import Server  # noqa: E402
from modelserver.settings import (  # noqa: E402
    EngineSettings,
    GrpcSettings,
    ModelServerSettings,
    ModelSettings,
)
from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc  # noqa: E402
from protos.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc  # noqa: E402
from tests.integration.modelserver import run_scoring, tiny_models  # noqa: E402
from tests.integration.modelserver.model_families import SHAPES  # noqa: E402
from tests.integration.modelserver.run_engines import CACHE_BLOCKS, STEP_TOKENS  # noqa: E402
from tests.integration.modelserver.several_engines import several_engines  # noqa: E402

CALL_S = 120.0
NEWEST = "-newest"
OWN_TOKENIZER = frozenset(("qwen2",))
"""Families for which transformers has a tokenizer of its own, whatever the files say: they are saved with it."""
QUERIES = [*tiny_models.queries(), tiny_models.longest()]
Matrix = npt.NDArray[np.float32]


def saved(shape: str, folder: Path) -> Matrix:
    """Write the model; the unit vectors that transformers computes."""
    reference = SHAPES[shape].save(folder)
    tiny_models.limit_tokenizer(folder)  # the aggregator probes with words of MiniLM's
    if shape in OWN_TOKENIZER:
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    vectors = reference.vectors(QUERIES)
    units: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def newest(shape: str, folder: Path) -> str:
    """Let the installed sentence-transformers load it and save it beside; the name."""
    name = f"{shape}{NEWEST}"
    SentenceTransformer(str(folder / shape), device="cpu").save(str(folder / name))
    return name


def apart(shape: str, folder: Path, port: int, front: str, expected: Matrix) -> dict[str, Any]:
    """What serves it, and the largest difference from the expected vectors; or why it is not served."""
    inputs = [embedding_pb2.Input(token_ids=embedding_pb2.TokenIds(ids=query)) for query in QUERIES]
    request = embedding_pb2.EmbedRequest(model=shape, inputs=inputs, normalize=True)
    kinds: list[str] = []
    with grpc.insecure_channel(front) as channel, grpc.insecure_channel(f"127.0.0.1:{port}") as server:
        call = embedding_pb2_grpc.EmbeddingsStub(channel).Embed.future(request, timeout=CALL_S)

        def answered(_: object) -> None:
            if not call.cancelled():
                stub = modelserver_pb2_grpc.ModelServerStub(server)
                kinds.append(stub.Describe(modelserver_pb2.DescribeRequest(), timeout=CALL_S).engine)
                os.kill(os.getpid(), signal.SIGTERM)  # the server below ends as it does everywhere

        call.add_done_callback(answered)
        try:
            serve(shape, folder, port)
        except Exception as error:  # noqa: BLE001 - it is the result
            call.cancel()
            return {"error": f"{type(error).__name__}: {error}"}
        found = [np.frombuffer(each.embedding, "<f4") for each in call.result().embeddings]
    return {"engine": kinds[0], "difference": float(np.abs(np.stack(found) - expected).max())}


def serve(shape: str, folder: Path, port: int) -> None:
    """A model server, until SIGTERM."""
    settings = ModelServerSettings(
        model=ModelSettings(path=str(folder), name=shape, task="embed"),
        engine=EngineSettings(
            dtype="float32", step_tokens=STEP_TOKENS, vllm_options={"num_gpu_blocks_override": CACHE_BLOCKS}
        ),
        grpc=GrpcSettings(bind=f"127.0.0.1:{port}"),
    )
    telemetry = process_telemetry.start(TelemetrySettings(metrics_bind="127.0.0.1:0"), "modelserver")

    async def run() -> None:
        await Server(settings, model_files.read(folder, ""), telemetry).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    telemetry.shutdown()


def all_expected(folder: Path, saved_anew: Sequence[str]) -> dict[str, Matrix]:
    """Write all; what transformers makes of each."""
    expected: dict[str, Matrix] = {}
    for shape in SHAPES:
        expected[shape] = saved(shape, folder / shape)
        if shape in saved_anew:
            expected[newest(shape, folder)] = expected[shape]
    return expected


def results(folder: Path, expected: Mapping[str, Matrix]) -> Iterator[dict[str, Any]]:
    """Of one after the other, all behind one aggregator."""
    ports = free_ports(len(expected))
    models = [
        {"name": shape, "servers": [f"127.0.0.1:{port}"], "scales_to_zero": True}
        for shape, port in zip(expected, ports, strict=True)
    ]
    aggregator = without_kafka(folder / "aggregator.log", model="", servers=[], settings={"MODELS": json.dumps(models)})
    with aggregator as front:
        for (shape, vectors), port in zip(expected.items(), ports, strict=True):
            yield {"shape": shape, **apart(shape, folder / shape, port, front.address, vectors)}


def main(folder: Path, *saved_anew: str) -> None:
    """Write all models, before one is served: vLLM changes classes of transformers. Then run them, a line each."""
    torch.manual_seed(0)
    (scored := folder / "scoring").mkdir()
    expected, scores = all_expected(folder, saved_anew), run_scoring.all_expected(scored)
    with several_engines():
        for name, lines in (("families", results(folder, expected)), ("scores", run_scoring.results(scored, scores))):
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(each) + "\n" for each in lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
