"""Redis as a source: entries become requests; they are acknowledged and deleted once their replies are written."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from typing_extensions import override

from aggregator.errors import Code
from aggregator.observability.metrics import Unwritten
from aggregator.request.kind import kind_named
from aggregator.request.request import Backlog, Failure, Receive, Request, Source
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.brokers import BrokerParts
from aggregator.sources.wire.turns import encoded
from aggregator.sources.wire.values import defaults_of, permitted
from aggregator.wings.redis.codec import (
    LIST,
    REDIS,
    Command,
    EntryAnswer,
    StreamIntake,
    answer_of,
    origin_of,
    write_dead_letter,
    write_reply,
)
from aggregator.wings.redis.connection import TRANSIENT, Server, disconnect, prepare_streams, reason_of
from aggregator.wings.redis.settings import RedisSettings, StreamSettings
from aggregator.wings.redis.stream import RequestStream

_LOG = logging.getLogger(__name__)
_RETRY_S, _HEARTBEAT_S = 0.5, 2.0  # at most: claims are renewed within a third of takeover_idle_s
_FINAL = {"wrong_type": Unwritten.REFUSED, "refused": Unwritten.REFUSED, "forbidden": Unwritten.FORBIDDEN}
"""Why a reply is never written: its key does not take it. Anything else passes."""


class RedisSource(Source):
    """Streams. Its senders do not wait: a stream is not read while its model is full."""

    name = REDIS
    refusable = False

    def __init__(
        self,
        settings: RedisSettings,
        client: Any,
        parts: BrokerParts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = parts.metrics
        self._clock = clock
        self.server = Server(client, parts.metrics, clock)
        self._retrying = 0
        consumer = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        names = [stream.name for stream in settings.streams]
        permits = permitted(set(map(settings.replies_of, settings.streams)), names, settings.allowed_replies, LIST)

        def open_stream(stream: StreamSettings) -> RequestStream:
            defaults = defaults_of(stream, self, parts.default_model, trusts_tenant=parts.trusts_tenant)
            reply_to, kind = settings.replies_of(stream), kind_named(stream.task, parts.kinds)
            place = StreamIntake(stream.name, settings.group_id, consumer, defaults, reply_to, permits, kind)
            return RequestStream(
                self.server,
                place,
                settings.client.takeover_idle_s,
                room=lambda: 0 if self._retrying else parts.room(defaults.model, kind.task),
                intake_bytes=parts.intake,
                dimensions=parts.dimensions,
                known=parts.known,
                refuse=self._refuse,
                clock=clock,
            )

        self._streams = {stream.name: open_stream(stream) for stream in settings.streams}

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return [stream.receive for stream in self._streams.values()]

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Make sure that each stream has its group. Raises StartError."""
        for warning in await prepare_streams(self._settings, timeout_s):
            _LOG.warning(warning)

    @override
    def trouble(self) -> str | None:
        return None if self.server.healthy else "Redis does not serve"

    @override
    async def run(self) -> None:
        """Keep the claims from other aggregators, and measure the backlog, until cancelled."""
        while True:
            for stream in self._streams.values():
                *_, pending, length = await self.server.send(stream.heartbeat())
                if not isinstance(pending, Exception) and not isinstance(length, Exception):
                    stream.waiting = max(0, length - pending["pending"])
            await asyncio.sleep(min(_HEARTBEAT_S, self._settings.client.takeover_idle_s / 3))

    @override
    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Write replies, then acknowledge and delete the entries; one whose reply is refused becomes a dead letter."""
        now_s = self._clock()
        as_json = [origin_of(request).as_json for request in requests]
        answers = await encoded(requests, partial(answer_of, now_s=now_s), as_json)
        requests_of = dict(zip(answers, requests, strict=True))
        for request in requests:
            request.free_vectors()
        async for written in self._write(requests_of):
            for answer in written:
                if answer.unwritten is not None:
                    requests_of[answer].overrule(answer.unwritten)
            yield [requests_of[answer] for answer in written]

    async def _refuse(self, answers: Sequence[EntryAnswer]) -> None:
        started_s = self._clock()
        async for written in self._write(answers):
            codes = Counter(answer.refused for answer in written)
            self._metrics.answered(REDIS, codes, [self._clock() - started_s] * len(written))

    async def _write(self, answers: Iterable[EntryAnswer]) -> AsyncIterator[Sequence[EntryAnswer]]:
        """Write until Redis has everything; after a failure no stream is read until it has."""
        left, retrying = list(answers), False
        try:
            while left:
                error = await self._write_once(left)
                written = [answer for answer in left if answer.reply is None and answer.letter is None]
                left = [answer for answer in left if answer.reply is not None or answer.letter is not None]
                if written:
                    await self._acknowledge(written)
                    yield written
                if error is not None:
                    self.server.failed("write", error)
                    self._retrying += not retrying
                    retrying = True
                    await asyncio.sleep(_RETRY_S)
            self.server.worked("write")
        finally:
            self._retrying -= retrying

    async def _write_once(self, answers: Sequence[EntryAnswer]) -> Exception | None:
        """Try to write every unwritten message; returns a transient error, if there was one."""
        length, ttl_ms = self._settings.client.max_stream_length, int(self._settings.client.list_ttl_s * 1000)
        replies = [
            (each, True, write_reply(each.origin, each.reply, length, ttl_ms))
            for each in answers
            if each.reply is not None
        ]
        letters = [
            (each, False, [write_dead_letter(each.origin.entry, *each.letter, length)])
            for each in answers
            if each.letter is not None
        ]
        parts = [*replies, *letters]
        results = iter(await self.server.send([command for _, _, commands in parts for command in commands]))
        passes: Exception | None = None
        for answer, is_reply, commands in parts:
            error, *_ = [next(results) for _ in commands]  # the first one decides
            reason = reason_of(error) if isinstance(error, Exception) else ""
            if reason and not (is_reply and reason in _FINAL):
                passes = error
            elif is_reply:
                answer.reply = None
                if reason:
                    self._metrics.replies_unwritten.add(1, _FINAL[reason])
                    answer.unwritten = Failure(Code.INTERNAL, f"the reply could not be written: {reason}")
                    answer.letter = answer.letter or (Code.INTERNAL, answer.unwritten.message)
            elif answer.letter is not None:
                self._metrics.dead_letters.add(1, answer.letter[0].name)
                answer.letter = None
        return passes

    async def _acknowledge(self, answers: Sequence[EntryAnswer]) -> None:
        """Acknowledge and delete entries; if Redis refuses that for good, they are read again."""
        entries = [answer.origin.entry for answer in answers]
        streams = {entry.intake.stream for entry in entries}
        for stream in streams:
            ids = [entry.entry_id for entry in entries if entry.intake.stream == stream]
            commands: list[Command] = [("XACK", stream, self._settings.group_id, *ids), ("XDEL", stream, *ids)]
            while errors := [each for each in await self.server.send(commands) if isinstance(each, Exception)]:
                self._metrics.commit_failures.add(len(errors))
                if self.server.failed("acknowledge", errors[0]) in {*_FINAL, "no_group"}:
                    break
                await asyncio.sleep(_RETRY_S)
            else:
                self.server.worked("acknowledge")
            for each in ids:
                self._streams[stream].release(each)

    @override
    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause the streams whose own model has no server, or that ask for a model that is full for their class."""
        for stream in self._streams.values():
            defaults, asked = stream.intake.defaults, stream.asked | {stream.intake.defaults.model}
            stream.paused = away(defaults.model, stream.intake.kind.task) or any(
                full(each, defaults.priority) for each in asked
            )
            stream.change()

    @override
    async def stop(self, grace_s: float) -> None:
        for stream in self._streams.values():
            stream.change(stop=True)

    @override
    async def close(self, timeout_s: float) -> None:
        with suppress(*TRANSIENT):  # without Redis, others take over after `takeover_idle_s`
            async with asyncio.timeout(timeout_s):
                for stream in self._streams.values():
                    await stream.leave()
        await disconnect(self.server.client)

    @override
    def backlogs(self) -> list[Backlog]:
        return [
            Backlog(
                REDIS,
                name,
                REDIS,
                each.intake.defaults.model,
                each.waiting,
                paused=each.paused or self._retrying > 0,
                outranked=each.paused and each.outranked,
            )
            for name, each in self._streams.items()
        ]
