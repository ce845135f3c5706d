import asyncio
import os
import uuid

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from protos.embedding.v1 import embedding_pb2 as pb

HEADERS = [("content-type", b"application/x-protobuf")]


async def embed_all(texts: list[str]) -> dict[str, np.ndarray]:
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="latest")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    await consumer.start()
    try:
        partitions = await producer.partitions_for("embed.replies.v1")
        places = [TopicPartition("embed.replies.v1", partition) for partition in partitions]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)  # known before anything is sent
        waiting = {str(uuid.uuid4()): text for text in texts}
        for request_id, text in waiting.items():
            request = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)])
            await producer.send("embed.requests.v1", request.SerializeToString(), key=b"demo", headers=HEADERS)
        await producer.flush()
        vectors: dict[str, np.ndarray] = {}
        async for record in consumer:
            reply = pb.EmbedResponse.FromString(record.value)
            text = waiting.pop(reply.request_id, None)  # None: another's reply, or a duplicate
            if text is not None:
                if reply.status.code:
                    raise ValueError(f"{text!r}: {reply.status.message}")
                vectors[text] = np.frombuffer(reply.embeddings[0].embedding, "<f4")
            if not waiting:
                return vectors
    finally:
        await consumer.stop()
        await producer.stop()


found = asyncio.run(asyncio.wait_for(embed_all([f"question {n}" for n in range(100)]), 60))
print("replies:", len(found), "dimensions:", len(found["question 0"]))
