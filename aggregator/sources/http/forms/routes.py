"""The routes of other APIs than OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aggregator.sources.http.answer import Read
from aggregator.sources.http.forms.cohere import read_embed
from aggregator.sources.http.forms.voyage import read_documents
from aggregator.sources.http.scores import read_classify, read_rerank, read_score

ROUTES: Mapping[str, Read] = {
    "/v1/contextualizedembeddings": read_documents,
    "/v1/embed": partial(read_embed, version=1),
    "/v2/embed": partial(read_embed, version=2),
    "/rerank": partial(read_rerank, returns_documents=True),
    "/v1/rerank": partial(read_rerank, returns_documents=True),
    "/v2/rerank": partial(read_rerank, returns_documents=False),
    "/score": read_score,
    "/v1/score": read_score,
    "/classify": read_classify,
}
"""Each is a POST."""
