import os

from langchain_openai import OpenAIEmbeddings

embeddings = OpenAIEmbeddings(
    base_url=f"http://{os.environ['HTTP_TARGET']}/v1",
    api_key=os.environ.get("EMBED_TOKEN", "none"),
    model="all-minilm-l6-v2",
    check_embedding_ctx_length=False,
)
vectors = embeddings.embed_documents(["what is batching", "why batch by tokens"])
print("vectors:", len(vectors), "dimensions:", len(vectors[0]))
