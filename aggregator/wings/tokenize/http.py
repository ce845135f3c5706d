"""Serve `POST /tokenize` and `POST /detokenize` over HTTP; no engine answers them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aggregator.admission.enqueue import LONG_CHARACTERS
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Models
from aggregator.admission.sequences import most_characters
from aggregator.errors import ModelUnavailable
from aggregator.scheduler.work_item import Task
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.exchange import HttpExchange
from aggregator.sources.http.json_body import decode_body, read_any
from aggregator.sources.http.service import OpenAIService, Route
from aggregator.sources.wire.decode import MAX_TOKEN_IDS
from aggregator.wings.tokenize.bodies import MANY_IDS, MANY_TOKENS, TOKENIZE, detokenized, read_detokenize, tokenized


def open_routes(service: OpenAIService) -> Mapping[str, Route]:
    """The routes of both, by path."""
    door = _Door(service.models)
    return {"/tokenize": Route(door.tokenize), "/detokenize": Route(door.detokenize)}


class _Door:
    def __init__(self, models: Models) -> None:
        self._models = models

    def tokenize(self, exchange: HttpExchange) -> None:
        exchange.start(self._count(exchange))

    async def _count(self, exchange: HttpExchange) -> None:
        asked = await read_any(partial(decode_body, TOKENIZE), exchange.take_body())
        served = self._served(asked.model or exchange.identity.defaults.model)
        limit = most_characters(served)
        if len(asked.prompt) > limit:
            raise FieldError(f"the prompt has more than {limit} characters", "prompt")
        counted = await served.counting.count([asked.prompt], long=len(asked.prompt) > LONG_CHARACTERS)

        write = partial(tokenized, served, asked, counted)
        slow = asked.return_token_offsets or len(counted.ids) > MANY_IDS
        exchange.answer(200, await in_slow_lane(write) if slow else write(), {})

    def detokenize(self, exchange: HttpExchange) -> None:
        exchange.start(self._join(exchange))

    async def _join(self, exchange: HttpExchange) -> None:
        most = max((each.description.max_input_tokens for each in self._models.in_service()), default=MAX_TOKEN_IDS)
        asked = await read_any(partial(read_detokenize, most=most), exchange.take_body())
        served = self._served(asked.model or exchange.identity.defaults.model)
        most = served.description.max_input_tokens
        if len(asked.tokens) > most:
            raise FieldError(f"more than {most} token ids", "tokens")
        write = partial(detokenized, served, asked)
        exchange.answer(200, await in_slow_lane(write) if len(asked.tokens) > MANY_TOKENS else write(), {})

    def _served(self, name: str) -> ModelRevision:
        """The revision that most servers have. Raises UnknownModel or ModelUnavailable."""
        for task in Task:
            served = self._models.find(name, task).choose("", "")
            if served is not None:
                return served
        raise ModelUnavailable(f"model {name} has no server now")
