import os
import time

import grpc
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as rpc


def retry_delay(error: grpc.RpcError) -> float | None:
    """Seconds to wait before another try; None when none can help."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return info.retry_delay.ToMilliseconds() / 1000
    return None


def embed(stub: rpc.EmbeddingsStub, texts: list[str], timeout: float = 1.0) -> np.ndarray:
    request = pb.EmbedRequest(inputs=[pb.Input(text=text) for text in texts], input_type=pb.INPUT_TYPE_QUERY)
    deadline = time.monotonic() + timeout
    while True:
        try:
            answer = stub.Embed(request, timeout=deadline - time.monotonic())
            break
        except grpc.RpcError as error:
            delay = retry_delay(error)
            if delay is None or time.monotonic() + delay > deadline:
                raise
            time.sleep(delay)
    for text, found in zip(texts, answer.embeddings):
        if found.status.code:
            raise ValueError(f"{text!r}: {found.status.message}")
    return np.stack([np.frombuffer(found.embedding, "<f4") for found in answer.embeddings])


with grpc.insecure_channel(os.environ.get("EMBED_TARGET", "localhost:50051")) as channel:
    stub = rpc.EmbeddingsStub(channel)
    vectors = embed(stub, ["who wrote the art of war", "how deep is the ocean"], timeout=10)
    print("vectors:", vectors.shape[0], "dimensions:", vectors.shape[1])

    requests = (pb.EmbedRequest(request_id=str(n), inputs=[pb.Input(text=f"question {n}")]) for n in range(100))
    answers = {answer.request_id: answer for answer in stub.EmbedStream(requests, timeout=10)}
    print("streamed:", sum(not answer.status.code for answer in answers.values()))
