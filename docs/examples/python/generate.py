import os

from tokenbatch_client import Client

with Client(os.environ.get("EMBED_TARGET", "localhost:50051")) as client:
    for part in client.stream("The capital of France is", model="smollm2-135m-instruct", max_tokens=20, temperature=0):
        print(part.text, end="", flush=True)
print("\ntokens:", part.usage.completion_tokens)
