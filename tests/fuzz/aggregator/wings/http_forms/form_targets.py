"""Fuzz bodies of other forms than OpenAI's over HTTP."""

from __future__ import annotations

from functools import partial

from aggregator.wings.http_forms.cohere import read_embed
from aggregator.wings.http_forms.voyage import read_documents
from tests.fuzz.http_targets import check_read
from tests.fuzz.target import Target


def check_cohere(data: bytes) -> None:
    """A body of /v2/embed."""
    check_read(partial(read_embed, version=1 + len(data) % 2), data)


def check_documents(data: bytes) -> None:
    """A body of /v1/contextualizedembeddings."""
    check_read(read_documents, data)


TARGETS = (Target("http_cohere", check_cohere), Target("http_documents", check_documents))
