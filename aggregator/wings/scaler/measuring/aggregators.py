"""Ask every aggregator for its demand in each round, and keep the last answer of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import grpc
import grpc.aio

from aggregator.wings.scaler.settings import AggregatorsSettings
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc

_LOG = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 3.0
"""Limit for the answer of an aggregator or of another scaler."""
_NEWCOMER_S = 30.0
"""An aggregator that has not answered for this time is left out while its pod is not Ready."""
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(slots=True)
class Asked:
    """One aggregator: since when it is known, whether its pod is Ready, and its last answer."""

    since_s: float
    channel: grpc.aio.Channel
    serving: bool = True
    answer: pb.GetDemandResponse | None = None
    answered_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all aggregators; `measured_s` is the time of the oldest, -inf if one is missing."""

    answers: tuple[pb.GetDemandResponse, ...]
    measured_s: float


class Aggregators:
    """All aggregators with their last answers. Times are monotonic seconds."""

    def __init__(self, settings: AggregatorsSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._asked: dict[str, Asked] = {}

    async def follow(self, found: AsyncIterator[Mapping[str, bool]]) -> None:
        async for addresses in found:
            for address in self._asked.keys() - addresses.keys():
                await self._asked.pop(address).channel.close()
            for address, serving in addresses.items():
                if address not in self._asked:
                    channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
                    self._asked[address] = Asked(self._clock(), channel)
                self._asked[address].serving = serving

    async def ask(self) -> None:
        """Ask all at once. An aggregator that does not answer keeps its last answer, which becomes old."""
        async with asyncio.TaskGroup() as tasks:
            for address, asked in list(self._asked.items()):
                tasks.create_task(self._ask(address, asked), name=f"ask {address}")

    def answers(self) -> Answers:
        """The last answers of the aggregators that are expected to answer."""
        expected = [asked for asked in self._asked.values() if self._is_expected(asked)]
        measured_s = min((asked.answered_s for asked in expected), default=float("-inf"))
        return Answers(tuple(asked.answer for asked in expected if asked.answer is not None), measured_s)

    def silent(self) -> list[str]:
        limit_s = self._clock() - 2 * self._settings.interval_s - ANSWER_TIMEOUT_S
        return sorted(address for address, asked in self._asked.items() if asked.answered_s < limit_s)

    async def close(self) -> None:
        for asked in self._asked.values():
            await asked.channel.close()
        self._asked.clear()

    def _is_expected(self, asked: Asked) -> bool:
        """False for a new aggregator that may still be starting, and for a silent one that is not Ready."""
        is_silent = self._clock() - max(asked.since_s, asked.answered_s) > _NEWCOMER_S
        return asked.serving if is_silent else asked.answer is not None

    async def _ask(self, address: str, asked: Asked) -> None:
        stub = pb_grpc.DemandStub(asked.channel)
        try:
            asked.answer = await stub.GetDemand(pb.GetDemandRequest(), timeout=ANSWER_TIMEOUT_S)
            asked.answered_s = self._clock()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            _LOG.warning("an aggregator did not answer", extra={"address": address, "error": str(error)[:300]})
