"""The routes of other APIs than OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.http.answer import Form
from aggregator.wings.http_forms.cohere import read_embed
from aggregator.wings.http_forms.voyage import read_documents

ROUTES: Mapping[str, Form] = {
    "/v1/contextualizedembeddings": (EMBEDDING, read_documents),
    "/v1/embed": (EMBEDDING, partial(read_embed, version=1)),
    "/v2/embed": (EMBEDDING, partial(read_embed, version=2)),
}
"""Each is a POST."""
