"""Keep a connection to every model server, and report to the pipeline which of them take batches.

A server joins the pool when it answers well, and is removed as soon as it does not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from aggregator.errors import BatchFailed
from aggregator.model_server import ModelServer, PoolMembers, ServerDescription, differences
from aggregator.observability.costs import REST, Costs
from aggregator.observability.tracing import Tracing
from aggregator.replicas.answers import BadDescription
from aggregator.replicas.client import ModelServerClient, connected
from aggregator.replicas.targets import Target, Targets
from aggregator.request.kind import Kind
from aggregator.tokenizers.cache import TokenizerCache, TokenizerMismatch
from aggregator.tokenizers.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)

_PROBE_TEXT = "probe"


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """How long a call may take, and how long to wait between tries: doubling, with jitter.

    A server that stayed well for `steady_s` is tried again quickly when it is lost.
    """

    call_timeout_s: float = 5.0
    tokenizer_timeout_s: float = 60.0
    check_every_s: float = 10.0
    first_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    steady_s: float = 30.0
    close_grace_s: float = 30.0
    jitter: Callable[[], float] = random.random

    def delay_s(self, tries: int) -> float:
        """The pause after this number of failed tries: half to one and a half times the exponential backoff."""
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(tries, 30)) * (0.5 + self.jitter())


class ModelServers:
    """The model servers at changing addresses; it reports to the pipeline as they join and leave."""

    def __init__(
        self,
        targets: Targets,
        tokenizers: TokenizerCache,
        kinds: Sequence[Kind],
        *,
        tracing: Tracing | None = None,
        costs: Costs | None = None,
        policy: ProbePolicy | None = None,
    ) -> None:
        self._targets = targets
        self._tokenizers = tokenizers
        self._kinds = kinds
        self._tracing = tracing
        self._costs = costs
        self._policy = policy or ProbePolicy()
        self._agreement = Agreement()
        self._watches: dict[Target, ModelServerWatch] = {}

    async def run(self, members: PoolMembers) -> None:
        """Keep a connection to every configured server until cancelled; `members` receive each join and leave."""
        async with asyncio.TaskGroup() as tasks:
            running: dict[Target, asyncio.Task[None]] = {}
            async for targets in self._targets:
                for target in running.keys() - targets:
                    running.pop(target).cancel()
                    del self._watches[target]
                for target in targets - running.keys():
                    client = ModelServerClient(target.address, self._kinds, self._tracing, self._costs)
                    watch = self._watches[target] = ModelServerWatch(
                        target, client, members, self._tokenizers, agreement=self._agreement, policy=self._policy
                    )
                    running[target] = tasks.create_task(watch.run(), name=f"model server {target.address}")

    def suspect(self, server: ModelServer) -> None:
        """A batch failed there: remove it now, probe it, and let it join again once it answers."""
        for watch in self._watches.values():
            watch.suspect(server)

    def troubles(self) -> list[tuple[Target, str]]:
        """Every configured server, and why it is not in the pool; empty while it is."""
        return [(target, watch.trouble) for target, watch in self._watches.items()]


@dataclass(slots=True)
class Agreement:
    """The properties that all servers of one model revision share; the first to join defines it."""

    _members: dict[tuple[str, str], list[ServerDescription]] = field(
        default_factory=dict[tuple[str, str], list[ServerDescription]]
    )

    def join(self, description: ServerDescription) -> None:
        """Raises BadDescription for a server whose results could differ from those of the others."""
        members = self._members.setdefault((description.model, description.model_revision), [])
        for task, own in description.by_task.items():
            for member in (*(each for each in members if task in each.by_task), *members)[:1]:
                differing = differences(own, member.by_task.get(task, member))
                if differing:
                    found = "; ".join(differing)
                    raise BadDescription(f"it differs from {member.address}, of the same revision: {found}")
        members.append(description)

    def leave(self, description: ServerDescription) -> None:
        key = (description.model, description.model_revision)
        self._members[key].remove(description)
        if not self._members[key]:
            del self._members[key]


@dataclass(eq=False)
class ModelServerWatch:
    """Lets one server join and leave the pool, again and again.

    `trouble`: why it is not in the pool; empty while it is.
    """

    target: Target
    client: ModelServerClient
    members: PoolMembers
    tokenizers: TokenizerCache
    _: KW_ONLY
    agreement: Agreement
    policy: ProbePolicy
    trouble: str = "it was not reached yet"
    _server: ModelServer | None = None
    _suspected: asyncio.Event = field(default_factory=asyncio.Event)
    _last_trouble: str = ""

    async def run(self) -> None:
        """Reach the server, let it join, wait until it is lost, again and again."""
        loop = asyncio.get_running_loop()
        tries = 0
        try:
            while True:
                try:
                    server, tokenizer = await self._reach()
                except (BatchFailed, BadDescription, TokenizerMismatch, ValueError, OSError) as error:
                    self._report(error)
                except Exception as error:  # noqa: BLE001 - no answer of one server may end the work of all others
                    kind = type(error).__name__
                    self._report(BadDescription(f"its answers or its tokenizer cannot be used: {kind}: {error}"))
                else:
                    joined_s = loop.time()
                    await self._keep_joined(server, tokenizer)
                    tries = 0 if loop.time() - joined_s >= self.policy.steady_s else tries
                await asyncio.sleep(self.policy.delay_s(tries))
                tries += 1
        finally:
            self._withdraw("the pool stopped watching it")
            await self.client.close(self.policy.close_grace_s)

    def suspect(self, server: ModelServer) -> None:
        """Remove the server at once, if it is still the one here; it is probed before it joins again."""
        if server is self._server:
            self._withdraw("a batch failed there")
            self._suspected.set()

    async def _reach(self) -> tuple[ModelServer, Tokenizer]:
        """Check that it serves the right model, and that it answers a probe made with its own tokenizer."""
        description = await self.client.describe(self.policy.call_timeout_s)
        if description.model != self.target.model:
            raise BadDescription(f"it serves the model {description.model}, not {self.target.model}")
        fingerprint = description.tokenizer_fingerprint
        tokenizer = await asyncio.to_thread(self.tokenizers.get, fingerprint)
        if tokenizer is None:
            files = await self.client.fetch_tokenizer(self.policy.tokenizer_timeout_s)
            tokenizer = await asyncio.to_thread(self.tokenizers.put, fingerprint, files)
        server = connected(self.client, description)
        counted = await asyncio.to_thread(tokenizer.count, [_PROBE_TEXT])
        for kind in self.client.kinds:
            own = description.by_task.get(kind.task)
            if own is not None:
                await asyncio.to_thread(kind.check_tokenizer, own, tokenizer)
                engine_s = await kind.probe(server, counted.ids.tobytes(), timeout_s=self.policy.call_timeout_s)
                if engine_s is not None:
                    self.client.costs.charge(own.model, own.kind, REST, engine_s)
        return server, tokenizer

    async def _keep_joined(self, server: ModelServer, tokenizer: Tokenizer) -> None:
        """Let it join, and wait until it reports or shows that it does not serve."""
        description = server.description
        try:
            self.agreement.join(description)
        except BadDescription as error:
            self._report(error)
            return
        self._suspected.clear()
        self._server = server
        self._last_trouble = self.trouble = ""
        _LOG.info(
            "joined a model server",
            extra={
                "address": description.address,
                "model": description.model,
                "model_revision": description.model_revision,
                "instance_id": description.instance_id,
                "tasks": [str(task) for task in description.by_task],
                "saturation_point": description.curve.saturation_point if description.curve else None,
                "fast_tokenizer": tokenizer.uses_fast_path,
            },
        )
        self.members.join(server, tokenizer)
        self._withdraw(await self._until_lost())

    async def _until_lost(self) -> str:
        """Wait for a failure of its health service or of a batch; returns the reason."""
        address, policy = self.target.address, self.policy
        news = [
            asyncio.create_task(self.client.until_not_serving(), name=f"health of {address}"),
            asyncio.create_task(
                self.client.until_silent(policy.check_every_s, policy.call_timeout_s), name=f"silence of {address}"
            ),
            asyncio.create_task(self._until_suspected(), name=f"suspicion of {address}"),
        ]
        try:
            done, _ = await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in news:
                task.cancel()
            await asyncio.gather(*news, return_exceptions=True)

    async def _until_suspected(self) -> str:
        await self._suspected.wait()
        return "a batch failed there"

    def _withdraw(self, reason: str) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        self.trouble = reason
        self.agreement.leave(server.description)
        self.members.leave(server)
        _LOG.warning("withdrew a model server", extra={"address": server.description.address, "reason": reason})

    def _report(self, error: Exception) -> None:
        """Log why it is left out: once, until the reason changes."""
        trouble = self.trouble = str(error)
        if trouble == self._last_trouble:
            return
        self._last_trouble = trouble
        grave = not isinstance(error, BatchFailed)
        _LOG.log(
            logging.ERROR if grave else logging.WARNING,
            "left out a model server",
            extra={"address": self.target.address, "model": self.target.model, "reason": trouble},
        )


async def describe(address: str, kinds: Sequence[Kind], timeout_s: float) -> ServerDescription:
    """The description of the server at an address. Raises ModelServerLost or BadDescription."""
    client = ModelServerClient(address, kinds)
    try:
        return await client.describe(timeout_s)
    finally:
        await client.close()
