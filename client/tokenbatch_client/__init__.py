"""Calls of tokenbatch: embed, rank, score and generate over gRPC; `tokenbatch_client.kafka` sends through Kafka."""

from tokenbatch_client.client import AsyncClient, Client
from tokenbatch_client.errors import (
    Closed,
    CredentialError,
    DeadlineExceeded,
    InputError,
    NotServed,
    Overloaded,
    ServerError,
    TokenbatchError,
    Unavailable,
)
from tokenbatch_client.results import Embedding, Embeddings, Ranked, Scored, Text

__all__ = [
    "AsyncClient",
    "Client",
    "Closed",
    "CredentialError",
    "DeadlineExceeded",
    "Embedding",
    "Embeddings",
    "InputError",
    "NotServed",
    "Overloaded",
    "Ranked",
    "Scored",
    "ServerError",
    "Text",
    "TokenbatchError",
    "Unavailable",
]
