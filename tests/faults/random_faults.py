"""Faults that any part may meet at any time, for a soak."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from loadtest.stack.kafka import KafkaBroker
from tests.faults.row_stack import RowStack, Variant


@dataclass(frozen=True, slots=True)
class Faults:
    """Each breaks something of the stack and mends it again; `chance` chooses what, and for how long.

    `lasting` is an aggregator that lives through all of it, so that its memory can be watched.
    """

    stack: RowStack
    lasting: Variant
    broker: KafkaBroker
    chance: random.Random

    @property
    def all(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Every one of them."""
        return (
            self.kill_an_aggregator,
            self.stop_an_aggregator,
            self.freeze_an_aggregator,
            self.kill_a_model_server,
            self.freeze_a_model_server,
            self.kill_all_model_servers,
            self.restart_the_broker,
            self.kill_the_broker,
        )

    async def kill_an_aggregator(self) -> None:
        """SIGKILL; another is started in its place."""
        victim = self._mortal()
        victim.kill()
        await self.stack.start(victim)

    async def stop_an_aggregator(self) -> None:
        """SIGTERM, which must end it well."""
        victim = self._mortal()
        assert await self.stack.stop(victim) == [0]
        await self.stack.start(victim)

    async def freeze_an_aggregator(self) -> None:
        """For less or more than the session's time-out."""
        victim = self.chance.choice(self.stack.aggregators)
        victim.pause()
        await asyncio.sleep(self.chance.uniform(1.0, 15.0))  # the fault itself
        victim.resume()

    async def kill_a_model_server(self) -> None:
        """SIGKILL; it is away for a while."""
        victim = self.chance.choice(self.stack.servers)
        victim.kill()
        await self._be_away()
        await asyncio.to_thread(victim.start)

    async def freeze_a_model_server(self) -> None:
        """It keeps its connections and answers nothing."""
        victim = self.chance.choice(self.stack.servers)
        victim.pause()
        await asyncio.sleep(self.chance.uniform(1.0, 10.0))  # the fault itself
        victim.resume()

    async def kill_all_model_servers(self) -> None:
        """None is left for a while."""
        for victim in self.stack.servers:
            victim.kill()
        await self._be_away()
        for victim in self.stack.servers:
            await asyncio.to_thread(victim.start)

    async def restart_the_broker(self) -> None:
        """As for an upgrade."""
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start)

    async def kill_the_broker(self) -> None:
        """As by a crash."""
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)

    def _mortal(self) -> Variant:
        return self.chance.choice([each for each in self.stack.aggregators if each is not self.lasting])

    async def _be_away(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 5.0))  # the fault itself
