"""Benchmarks of records: from Kafka to Kafka, from Redis to Redis, their cost, and what changes as more wait."""
