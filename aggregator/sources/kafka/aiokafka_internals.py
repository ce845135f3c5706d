"""All that is used of aiokafka though it is not public, each with its reason; checked against aiokafka 0.14.

docs/adr/0024-what-of-aiokafka-is-used.md lists what was tried instead, the upstream issues, and the test of each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.producer.transaction_manager import TransactionManager

# ruff: noqa: SLF001

_STOP_S = 2.0
_NEVER_MS = 2**31 - 1


async def close_client(client: Any) -> None:
    """Close a client, even if its metadata task has failed: `close` alone would raise that and keep connections."""
    if client._sync_task is not None and client._sync_task.done():
        client._sync_task = None
    await client.close()


def client_of(consumer: Any) -> Any:
    """The client of a consumer, to send requests for which the consumer has no method."""
    return consumer._client


def generation_of(consumer: Any) -> tuple[int, str]:
    """The generation that the consumer last joined, -1 once the group has removed it, and its member id."""
    return int(consumer._coordinator.generation), str(consumer._coordinator.member_id)


def knows_coordinator(consumer: Any) -> bool:
    """Whether the consumer has a coordinator of its group to talk to."""
    return consumer._coordinator is not None and consumer._coordinator.coordinator_id is not None


async def ask_coordinator(consumer: Any, request: Any) -> Any:
    """Send one request to the group's coordinator, once. Raises KafkaError.

    The consumer's own `commit` repeats a commit under whatever generation it then has, and its `committed` takes an
    answer that is an error for no offset.
    """
    return await consumer._coordinator._send_req(request)


def look_for_coordinator(consumer: Any) -> None:
    """Look for the group's coordinator again: it has moved."""
    consumer._coordinator.coordinator_dead()


def on_heartbeat(consumer: Any, answered: Callable[[], None]) -> None:
    """Call `answered` at each heartbeat that the coordinator accepted; aiokafka keeps its time in a local variable."""
    coordinator = consumer._coordinator
    beat: Callable[[], Awaitable[bool]] = coordinator._do_heartbeat

    async def noted() -> bool:
        counted_in = await beat()
        if counted_in:
            answered()
        return counted_in

    coordinator._do_heartbeat = noted


def consumer_failure(consumer: Any) -> Exception | None:
    """An error that only a new consumer cures: the group refuses this one, or one of its tasks has ended.

    aiokafka restarts none of them: https://github.com/aio-libs/aiokafka/issues/983. The tasks for heartbeats and for
    offsets end with each assignment, without an error.
    """
    coordinator = consumer._coordinator
    lasting = (coordinator._coordination_task, consumer._fetcher._fetch_task, consumer._client._sync_task)
    passing = (coordinator._heartbeat_task, coordinator._commit_refresh_task)
    for task in passing:
        if task is not None and task.done() and (task.cancelled() or task.exception() is not None):
            return _end_of(task)
    for task in lasting:
        if task is not None and task.done():
            return _end_of(task)
    refusal: Exception | None = coordinator._pending_exception
    return refusal


async def abandon_consumer(consumer: Any) -> None:
    """Disconnect a consumer that does not stop by itself: `stop` may wait for the coordinator without end.

    https://github.com/aio-libs/aiokafka/issues/659
    """
    coordinator = consumer._coordinator
    consumer._closed = True  # `stop` did not get this far, or would wait again
    tasks: list[asyncio.Task[None] | None] = []
    if coordinator is not None:
        tasks = [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_STOP_S / 2):
            await close_client(consumer._client)  # fails every request that waits for an answer
            if consumer._fetcher is not None:
                await consumer._fetcher.close()
            await asyncio.gather(*ending, return_exceptions=True)


def producer_tasks(producer: Any) -> tuple[asyncio.Task[None], ...]:
    """The tasks that a producer needs; each ends with the producer, or by an error. A closed client has one less."""
    return tuple(task for task in (producer._sender.sender_task, producer.client._sync_task) if task is not None)


def has_ended(producer: Any) -> bool:
    """Whether a task has ended, so that it writes nothing more and a write would wait forever."""
    return producer.client._sync_task is None or any(task.done() for task in producer_tasks(producer))


def fail_what_waits(producer: Any, ended: asyncio.Task[None]) -> None:
    """Let all writes fail that wait for a task that has ended, and all later ones."""
    producer._message_accumulator.fail_all(_end_of(ended))


def forget_topic(producer: Any, topic: str) -> None:
    """Do not ask for this missing topic at every refresh of the metadata."""
    producer.client._topics.discard(topic)


def renew_identity(producer: Any) -> None:
    """Make it get a new producer id, with new sequence numbers, before its next new batch.

    aiokafka does not reuse the sequence numbers of a refused batch, so the broker would refuse every later batch of
    that partition: https://github.com/aio-libs/aiokafka/issues/1017.
    """
    fresh = TransactionManager(None, _NEVER_MS)
    for part in (producer, producer._sender, producer._message_accumulator):
        part._txn_manager = fresh


async def abandon_producer(producer: Any) -> None:
    """Stop without waiting for a broker, as `stop` does without limit: waiting writes fail with ProducerClosed."""
    accumulator = producer._message_accumulator
    accumulator.fail_all(kafka_errors.ProducerClosed())
    for batch in chain(accumulator._pending_batches, *accumulator._batches.values()):
        if batch._drain_waiter.done():  # nobody asks for it, and asyncio would complain
            batch._drain_waiter.exception()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_STOP_S):
            await close_client(producer.client)
            await producer.stop()


def _end_of(task: asyncio.Task[None]) -> Exception:
    """Why a task of aiokafka ended."""
    error = None if task.cancelled() or not task.done() else task.exception()
    ended: Exception = kafka_errors.KafkaConnectionError(f"{task.get_coro()} has ended: {error!r}")
    return ended
