"""What this aggregator does beside embedding: a line a wing in each table, which its composition root hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aggregator.request.kind import Kind
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.generating import GENERATION
from aggregator.sources.grpc.reading import RpcService
from aggregator.sources.http.answer import Form
from aggregator.wings.http_forms.routes import ROUTES as OTHER_FORMS
from aggregator.wings.ranking.grpc import RankingService
from aggregator.wings.ranking.http import ROUTES as RANKING_ROUTES
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.stream.service import StreamService

KINDS: Sequence[Kind] = (
    EMBEDDING,
    GENERATION,
    RANKING,
)
"""The tasks, in the order in which a server's are described."""

SERVICES: Sequence[type[RpcService]] = (
    RankingService,
    StreamService,
)
"""Of gRPC."""

ROUTES: Mapping[str, Form] = {
    **OTHER_FORMS,
    **RANKING_ROUTES,
}
"""Of HTTP: the kind of a path's bodies, and how they are read. Each is a POST."""
