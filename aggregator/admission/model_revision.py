"""One revision of a model in service: its tokenizer, queue, replicas, and batches in flight."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import lru_cache

from aggregator.admission.known_rows import KnownRows
from aggregator.errors import InvalidRequest
from aggregator.model_server import ModelServer, ServerDescription, differences
from aggregator.request.request import Options, Request
from aggregator.scheduler.budget import ServiceLevel
from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.replica import Replica
from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import Tokenizer
from protos.embedding.v1 import embedding_pb2 as pb

_CONTROL_TEXT = "1"
"""A text that every healthy server computes: short, with the model's special tokens around it."""


class ModelRevision:
    """One revision of a model for one task, while it has servers.

    `in_flight`: its batches that are sent and not answered. A `retired` revision sends nothing more: `abandon` is to
    empty its queue at once. `known`: the rows that need no computation.
    """

    def __init__(
        self,
        description: ServerDescription,
        tokenizer: Tokenizer,
        counting: Counting,
        policy: DispatchPolicy,
        *,
        slo: ServiceLevel | None = None,
        known: KnownRows | None = None,
    ) -> None:
        self.description = description
        self.tokenizer = tokenizer
        self.counting = counting
        self.known = known or KnownRows()
        policy = description.details.policy(policy)
        control_ids = tokenizer.count((_CONTROL_TEXT,)).ids.tobytes()
        self.dispatcher = Dispatcher(f"{description.model}-{uuid.uuid4().hex[:8]}", policy, control_ids)
        self.slo = slo
        self.servers: dict[str, ModelServer] = {}
        self.in_flight: set[Batch] = set()
        self.retired = False
        self.usage = description.details.usage()
        self.prompts: dict[int, str] = {
            pb.INPUT_TYPE_UNSPECIFIED: "",
            pb.INPUT_TYPE_QUERY: description.query_prompt,
            pb.INPUT_TYPE_DOCUMENT: description.document_prompt,
        }
        self._cached = lru_cache(maxsize=256)(self._complete)

    @property
    def query_capacity(self) -> int:
        """The most queries of a batch that each of its servers takes."""
        return min((server.description.step_query_capacity for server in self.servers.values()), default=1)

    def takes(self, description: ServerDescription) -> bool:
        """Whether a server may join: not if all others have left and its description differs."""
        return bool(self.servers) or not differences(self.description, description)

    def add(self, server: ModelServer, replica: Replica) -> None:
        self.servers[replica.name] = server
        self.dispatcher.replicas[replica.name] = replica
        self._limit_inputs()

    def remove(self, server: ModelServer) -> None:
        """Remove a server, unless a newer one is at its address."""
        address = server.description.address
        if self.servers.get(address) is server:
            del self.servers[address], self.dispatcher.replicas[address]
            self._limit_inputs()

    def _limit_inputs(self) -> None:
        """Accept what all of its servers do: a server that also generates takes a token less, and pools no spans."""
        task = self.description.task
        each = [server.description.by_task[task] for server in self.servers.values()]
        if each:
            self.description = replace(
                self.description,
                max_input_tokens=min(one.max_input_tokens for one in each),
                pools_spans=all(one.pools_spans for one in each),
            )

    def abandon(self) -> list[Request]:
        """Remove and return every open request that waits here; results of its batches in flight are dropped."""
        dispatcher = self.dispatcher
        waiting = [query for item in dispatcher.waiting() for query in item.waiters if not query.done]
        requests = dict[Request, None].fromkeys(query.request for query in waiting if query.request.remaining)
        dispatcher.queue.cancel(waiting)
        for batch in self.in_flight if requests else ():
            for query in (query for item in batch.items for query in item.waiters):
                if query.request in requests:
                    query.item = None
        return list(requests)

    def resolve(self, options: Options) -> Options:
        """Fill in the model's defaults. Raises InvalidRequest for options that it cannot meet."""
        return self._cached(options)

    def _complete(self, options: Options) -> Options:
        description = self.description
        dimensions = options.dimensions
        if dimensions and dimensions != description.dimensions and dimensions not in description.matryoshka_dimensions:
            raise InvalidRequest(
                f"dimensions {dimensions}: {description.model} gives {description.dimensions}"
                + (f" or one of {sorted(description.matryoshka_dimensions)}" * bool(description.matryoshka_dimensions)),
                "dimensions",
            )
        normalize = description.normalizes if options.normalize is None else options.normalize
        return replace(options, dimensions=dimensions or description.dimensions, normalize=normalize, asked=options)
