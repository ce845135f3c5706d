"""OpenAI's Batch API: files of requests, computed behind live ones.

Kafka says who works, and an object store is the state.
"""
