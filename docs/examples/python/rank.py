import os

from tokenbatch_client import Client

documents = ["Paris is the capital of France.", "Rain falls from clouds.", "France has many rivers."]
with Client(os.environ.get("EMBED_TARGET", "localhost:50051")) as client:
    ranked = client.rank("what is the capital of France", documents, model="ranker", top_n=2, truncate="end")
for each in ranked:
    print(f"{each.score:.3f} {each.document}" if each.error is None else each.error)
print("ranked:", len(ranked))
