import os

import numpy as np
from tokenbatch_client import Client

MODEL = "smollm2-135m-instruct"
DOCUMENTS = [
    "who wrote the art of war",
    "how deep is the ocean",
    "who invented gunpowder",
    "when was the great wall built",
]


def next_query(client: Client, query: str, neighbours: list[str]) -> str:
    known = "\n".join(f"- {text}" for text in [*neighbours, query])
    prompt = f"Search queries:\n{known}\n-"
    return client.generate(prompt, model=MODEL, max_tokens=16, stop=["\n"], temperature=0.7, seed=1).text.strip()


with Client(os.environ.get("EMBED_TARGET", "localhost:50051"), timeout_s=60) as client:
    index = client.embed(DOCUMENTS, model=MODEL, normalize=True).numpy()
    query = "what did the chinese invent"
    for _ in range(3):
        vector = client.embed([query], model=MODEL, normalize=True).numpy()[0]
        neighbours = [DOCUMENTS[place] for place in np.argsort(index @ vector)[:-3:-1]]
        query = next_query(client, query, neighbours) or query
        print(neighbours, "->", query)
print("loops:", 3)
