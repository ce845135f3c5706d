import os

from tokenbatch_client import Client

with Client(os.environ.get("EMBED_TARGET", "localhost:50051")) as client:
    vectors = client.embed(["who wrote the art of war", "how deep is the ocean"], input_type="query").numpy()
    print("vectors:", vectors.shape[0], "dimensions:", vectors.shape[1])

    rows = dict(client.embed_stream(f"question {n}" for n in range(100)))
    print("streamed:", sum(row.error is None for row in rows.values()))
