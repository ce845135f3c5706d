import os

from llama_index.embeddings.openai import OpenAIEmbedding

target = os.environ.get("HTTP_TARGET", "localhost:8000")
embeddings = OpenAIEmbedding(
    api_base=f"http://{target}/v1",
    api_key=os.environ.get("EMBED_TOKEN", "none"),
    model_name="all-minilm-l6-v2",
)
vectors = embeddings.get_text_embedding_batch(["what is batching", "why batch by tokens"])
print("vectors:", len(vectors), "dimensions:", len(vectors[0]))
