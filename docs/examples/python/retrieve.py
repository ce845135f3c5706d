import os

import grpc
import numpy as np

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as rpc
from protos.generation.v1 import generation_pb2
from protos.generation.v1 import generation_pb2_grpc as generation_rpc

MODEL = "smollm2-135m-instruct"
DOCUMENTS = [
    "who wrote the art of war",
    "how deep is the ocean",
    "who invented gunpowder",
    "when was the great wall built",
]


def embed(stub: rpc.EmbeddingsStub, texts: list[str]) -> np.ndarray:
    request = pb.EmbedRequest(model=MODEL, inputs=[pb.Input(text=text) for text in texts], normalize=True)
    return np.stack([np.frombuffer(found.embedding, "<f4") for found in stub.Embed(request, timeout=60).embeddings])


def next_query(stub: generation_rpc.GenerationStub, query: str, neighbours: list[str]) -> str:
    known = "\n".join(f"- {text}" for text in [*neighbours, query])
    request = generation_pb2.GenerateRequest(
        model=MODEL,
        prompt=f"Search queries:\n{known}\n-",
        sampling=generation_pb2.Sampling(max_tokens=16, stop=["\n"], temperature=0.7, seed=1),
    )
    return "".join(response.text for response in stub.Generate(request, timeout=60)).strip()


with grpc.insecure_channel(os.environ.get("EMBED_TARGET", "localhost:50051")) as channel:
    embeddings, generation = rpc.EmbeddingsStub(channel), generation_rpc.GenerationStub(channel)
    index = embed(embeddings, DOCUMENTS)
    query = "what did the chinese invent"
    for _ in range(3):
        vector = embed(embeddings, [query])[0]
        neighbours = [DOCUMENTS[place] for place in np.argsort(index @ vector)[:-3:-1]]
        query = next_query(generation, query, neighbours) or query
        print(neighbours, "->", query)
print("loops:", 3)
