import os
import uuid

import numpy as np
import redis

from protos.embedding.v1 import embedding_pb2 as pb

client = redis.Redis.from_url(f"redis://{os.environ.get('REDIS_SERVER', 'localhost:6379')}")


def embed_all(texts: list[str]) -> dict[str, np.ndarray]:
    newest = client.xrevrange("embed.replies.v1", count=1)
    last = newest[0][0] if newest else "0"
    waiting = {str(uuid.uuid4()): text for text in texts}
    with client.pipeline(transaction=False) as pipeline:
        for request_id, text in waiting.items():
            request = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)])
            pipeline.xadd("embed.requests.v1", {"value": request.SerializeToString()})
        pipeline.execute()
    vectors: dict[str, np.ndarray] = {}
    while waiting:
        for _, entries in client.xread({"embed.replies.v1": last}, block=1000):
            for last, fields in entries:
                reply = pb.EmbedResponse.FromString(fields[b"value"])
                text = waiting.pop(reply.request_id, None)  # None: another's reply, or a duplicate
                if text is not None:
                    if reply.status.code:
                        raise ValueError(f"{text!r}: {reply.status.message}")
                    vectors[text] = np.frombuffer(reply.embeddings[0].embedding, "<f4")
    return vectors


found = embed_all([f"question {n}" for n in range(100)])

# A caller waits for one reply, in JSON, on a list that nobody else reads.
key = f"caller:{uuid.uuid4()}"
client.xadd(
    "embed.requests.v1", {"value": "one more question", "content-type": "text/plain", "reply_to": f"list:{key}"}
)
_, reply = client.blpop(key, timeout=60)
assert b'"dimensions":384' in reply
print("replies:", len(found), "dimensions:", len(found["question 0"]))
