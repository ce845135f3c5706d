"""One revision of a model in service: its tokenizer, queue, replicas, and batches in flight."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Protocol, cast

from aggregator.admission.tokenizers.tokenizer import TextTokenizer, TokenBatch, Tokenizer
from aggregator.errors import InvalidRequest
from aggregator.replicas.answers import differences
from aggregator.replicas.engine import Engine, ServerDescription
from aggregator.replicas.texts.text import Text
from aggregator.request import Options, Request, request_of
from aggregator.scheduler.budget.controller import SlaGoal, SloTracker
from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.generating_replica import LENGTH_SHARE, MeanLength
from aggregator.scheduler.replica import Replica
from protos.embedding.v1 import embedding_pb2 as pb

_ID_BYTES = 4


class Counting(Protocol):
    """Token counts off the event loop, several callers' texts at once."""

    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        """Tokenize; the order of `texts` is kept. `long`: they may take seconds, and hold up no others."""
        ...


class ModelRevision:
    """One revision of a model, while it has servers.

    `under_way`: its batches in flight. A `retired` revision sends nothing more: what is still queued here is to be
    removed by `abandon` at once.
    """

    def __init__(
        self,
        description: ServerDescription,
        tokenizer: Tokenizer,
        counting: Counting,
        policy: DispatchPolicy,
        goal: SlaGoal | None = None,
    ) -> None:
        self.description = description
        self.tokenizer = tokenizer
        self.counting = counting
        if description.generating is not None:  # equal prompts may give different texts
            policy = replace(policy, queue=replace(policy.queue, coalesce=False), by_prefix=True)
        self.dispatcher = Dispatcher(f"{description.model}-{uuid.uuid4().hex[:8]}", policy)
        self.slo = SloTracker(goal) if goal is not None else None
        self.engines: dict[str, Engine] = {}
        self.under_way: set[Batch] = set()
        self.retired = False
        self.length = MeanLength()
        self._kv_token_s = self._demanded_tokens = 0.0
        self.prompts: dict[int, str] = {
            pb.INPUT_TYPE_UNSPECIFIED: "",
            pb.INPUT_TYPE_QUERY: description.query_prompt,
            pb.INPUT_TYPE_DOCUMENT: description.document_prompt,
        }
        self.resolve = lru_cache(maxsize=256)(self._resolve)

    def finished_text(self, text: Text, taken_s: float) -> None:
        """A text ended after `taken_s`; while it grew, half of its new tokens were held in the mean."""
        prompt_tokens, new_tokens = len(text.prompt_ids) // _ID_BYTES, len(text.token_ids)
        demanded = prompt_tokens + self.text_tokens(text)
        self.length.observe(new_tokens)
        self._kv_token_s += LENGTH_SHARE * ((prompt_tokens + new_tokens / 2) * taken_s - self._kv_token_s)
        self._demanded_tokens += LENGTH_SHARE * (demanded - self._demanded_tokens)

    @property
    def kv_token_s_per_token(self) -> float:
        """KV-cache occupancy (tokens × seconds) per token that texts are counted with."""
        return self._kv_token_s / self._demanded_tokens if self._demanded_tokens else 0.0

    def text_tokens(self, text: Text) -> int:
        """The prompt tokens that take as long as the text's new tokens are likely to take."""
        generating = self.description.generating
        if generating is None or not generating.per_token_s:
            return 0
        expected = min(self.length.new_tokens, text.sampling.max_tokens or inf)
        each_s = generating.per_sequence_s + generating.fixed_s / generating.max_sequences
        return int(expected * each_s / generating.per_token_s)

    @property
    def text_tokenizer(self) -> TextTokenizer:
        """The tokenizer of a model that generates."""
        return cast("TextTokenizer", self.tokenizer)

    @property
    def query_capacity(self) -> int:
        """The most queries of a batch that each of its servers takes."""
        return min((engine.description.step_query_capacity for engine in self.engines.values()), default=1)

    def takes(self, description: ServerDescription) -> bool:
        """Whether a server may join: not if all others have left and its description differs."""
        return bool(self.engines) or not differences(self.description, description)

    def add(self, engine: Engine, replica: Replica) -> None:
        """Add a server."""
        self.engines[replica.name] = engine
        self.dispatcher.replicas[replica.name] = replica

    def remove(self, engine: Engine) -> None:
        """Remove a server, unless a newer one is at its address."""
        address = engine.description.address
        if self.engines.get(address) is engine:
            del self.engines[address], self.dispatcher.replicas[address]

    def abandon(self) -> list[Request]:
        """Remove and return every open request that waits here; results of its batches in flight are dropped."""
        dispatcher = self.dispatcher
        waiting = [query for item in dispatcher.waiting() for query in item.waiters if not query.done]
        requests = dict.fromkeys(request_of(query) for query in waiting if request_of(query).remaining)
        for query in waiting:
            dispatcher.queue.cancel(query)
        for batch in self.under_way if requests else ():
            for query in (query for item in batch.items for query in item.waiters):
                if request_of(query) in requests:
                    query.item = None
        return list(requests)

    def _resolve(self, options: Options) -> Options:
        """Fill in what the model decides; raises InvalidRequest for what it cannot do."""
        description = self.description
        if description.generating is not None:
            raise InvalidRequest(f"{description.model} generates texts, and embeds none")
        dimensions = options.dimensions
        if dimensions and dimensions != description.dimensions and dimensions not in description.matryoshka_dimensions:
            raise InvalidRequest(
                f"dimensions {dimensions}: {description.model} gives {description.dimensions}"
                + (f" or one of {sorted(description.matryoshka_dimensions)}" * bool(description.matryoshka_dimensions))
            )
        normalize = description.normalizes if options.normalize is None else options.normalize
        return replace(options, dimensions=dimensions or description.dimensions, normalize=normalize, asked=options)
