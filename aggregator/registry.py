"""What this aggregator does beside embedding: a line a wing in each table, which its composition root hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aggregator.admission.models import NewReplica
from aggregator.pipeline.demand import NewDemand
from aggregator.pipeline.execute import Runner
from aggregator.request.kind import Kind
from aggregator.scheduler.replica_choice import NewReplicas
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.grpc.reading import RpcService
from aggregator.sources.http.answer import Form
from aggregator.sources.http.service import OpenRoutes
from aggregator.sources.kafka.progress import OpenProgress
from aggregator.wings.both.servers import mixed
from aggregator.wings.generation.deltas import Deltas
from aggregator.wings.generation.grpc import GenerationService
from aggregator.wings.generation.http import open_routes as open_generation_routes
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.runner import SequenceRunner
from aggregator.wings.http_forms.routes import ROUTES as OTHER_FORMS
from aggregator.wings.ranking.grpc import RankingService
from aggregator.wings.ranking.http import ROUTES as RANKING_ROUTES
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.scaler.reporting.meter import DemandMeter
from aggregator.wings.stream.service import StreamService
from aggregator.wings.subsets.active_replicas import ActiveReplicas
from aggregator.wings.token_vectors.grpc import TokenVectorsService
from aggregator.wings.token_vectors.http import ROUTES as TOKEN_ROUTES
from aggregator.wings.token_vectors.kind import TOKEN_VECTORS
from aggregator.wings.tokenize.http import open_routes as open_tokenize_routes

KINDS: Sequence[Kind] = (
    EMBEDDING,
    GENERATION,
    RANKING,
    TOKEN_VECTORS,
)
"""The tasks, in the order in which a server's are described."""

SERVICES: Sequence[type[RpcService]] = (
    GenerationService,
    RankingService,
    StreamService,
    TokenVectorsService,
)
"""Of gRPC."""

ROUTES: Mapping[str, Form] = {
    **OTHER_FORMS,
    **RANKING_ROUTES,
    **TOKEN_ROUTES,
}
"""Of HTTP: the kind of a path's bodies, and how they are read. Each is a POST."""

DOORS: Sequence[OpenRoutes] = (
    open_generation_routes,
    open_tokenize_routes,
)
"""Of HTTP too, where a part serves its routes itself."""

RUNNERS: Sequence[type[Runner]] = (
    SequenceRunner,
)  # fmt: skip
"""Of batches that give no rows."""

SUBSETS: Sequence[NewReplicas] = (
    ActiveReplicas,
)  # fmt: skip
"""What chooses the replicas of a model that are in use."""

REPLICAS: Sequence[NewReplica] = (
    mixed,
)  # fmt: skip
"""What is scheduled otherwise than a server of one task that gives rows."""

DEMAND: Sequence[NewDemand] = (
    DemandMeter,
)  # fmt: skip
"""What counts and reports the demand of each model."""

PROGRESS: Sequence[OpenProgress] = (
    Deltas.opened,
)  # fmt: skip
"""Writers of records about requests that are not complete yet."""
