import asyncio
import os

from tokenbatch_client.kafka import KafkaClient


async def embed_all(texts: list[str]) -> dict[str, list[float]]:
    async with KafkaClient(os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")) as kafka:
        return {texts[row.index]: row.vector() async for row in kafka.submit(texts, key="demo")}


found = asyncio.run(embed_all([f"question {n}" for n in range(100)]))
print("replies:", len(found), "dimensions:", len(found["question 0"]))
