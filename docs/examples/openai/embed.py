import os

from openai import OpenAI

target = os.environ.get("HTTP_TARGET", "localhost:8000")
client = OpenAI(base_url=f"http://{target}/v1", api_key=os.environ.get("EMBED_TOKEN", "none"))
answer = client.embeddings.create(model="all-minilm-l6-v2", input=["what is batching", "why batch by tokens"])
print("vectors:", len(answer.data), "dimensions:", len(answer.data[0].embedding))
