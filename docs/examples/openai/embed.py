import os

from openai import OpenAI

client = OpenAI(base_url=f"http://{os.environ['HTTP_TARGET']}/v1", api_key=os.environ.get("EMBED_TOKEN", "none"))
answer = client.embeddings.create(model="all-minilm-l6-v2", input=["what is batching", "why batch by tokens"])
print("vectors:", len(answer.data), "dimensions:", len(answer.data[0].embedding))
