import os

from langchain_openai import OpenAIEmbeddings

target = os.environ.get("HTTP_TARGET", "localhost:8000")
embeddings = OpenAIEmbeddings(
    base_url=f"http://{target}/v1",
    api_key=os.environ.get("EMBED_TOKEN", "none"),
    model="all-minilm-l6-v2",
    check_embedding_ctx_length=False,
)
vectors = embeddings.embed_documents(["what is batching", "why batch by tokens"])
print("vectors:", len(vectors), "dimensions:", len(vectors[0]))
