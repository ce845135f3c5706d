"""A pool of model servers that are there from the start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from aggregator.model_server import ModelServer, PoolMembers
from aggregator.replicas.pool import ModelServers
from aggregator.tokenizers.tokenizer import Tokenizer
from tests.support.fake_tokenizer import FakeTokenizer

_RETURNS_S = 1.0


@dataclass(eq=False)
class FakePool(ModelServers):
    """Announces its engines at once; notes suspects, and announces those again a while later."""

    engines: Sequence[ModelServer] = ()
    tokenizer: Tokenizer = field(default_factory=FakeTokenizer)
    suspects: list[ModelServer] = field(default_factory=list[ModelServer])
    members: PoolMembers | None = None

    @override
    async def run(self, members: PoolMembers) -> None:
        self.members = members
        for engine in self.engines:
            members.join(engine, self.tokenizer)
        await asyncio.Event().wait()

    @override
    def suspect(self, server: ModelServer) -> None:
        self.suspects.append(server)
        if self.members is not None:
            self.members.leave(server)
            asyncio.get_running_loop().call_later(_RETURNS_S, self.members.join, server, self.tokenizer)
