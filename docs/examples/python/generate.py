import os

import grpc

from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1 import generation_pb2_grpc as rpc

request = pb.GenerateRequest(
    model="smollm2-135m-instruct",
    prompt="The capital of France is",
    sampling=pb.Sampling(max_tokens=20, temperature=0),
)
with grpc.insecure_channel(os.environ.get("EMBED_TARGET", "localhost:50051")) as channel:
    for response in rpc.GenerationStub(channel).Generate(request, timeout=60):
        print(response.text, end="", flush=True)
print("\ntokens:", response.usage.completion_tokens)
