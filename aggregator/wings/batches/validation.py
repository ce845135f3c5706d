"""Read a batch's whole file once: its plan, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aggregator.wings.batches.lines import Validator
from aggregator.wings.batches.objects import Batch, FileMeta, Plan, Problem, data_path
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.batches.store import ObjectGone, Store

_VALIDATED_BYTES = 32 * 1024
"""In one turn of the event loop: it takes less than a millisecond,"""
_REST_S = 0.001
"""and as long again others have theirs."""
_LOOK_PIECES = 16
"""Pieces of the file after which it is looked whether its batch has a plan: a second's."""
_GONE = (Problem("file_not_found", "the file was deleted, or has expired"),)


async def validated(
    store: Store,
    settings: BatchesSettings,
    folder: str,
    batch: Batch,
    meta: FileMeta | None,
    *,
    is_planned: Callable[[], Awaitable[bool]],
    now_s: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> Plan | tuple[Problem, ...] | None:
    """The plan of a batch, or its problems; `meta` is its file's, None where there is none. Raises StoreAway.

    None once it `is_planned`: another aggregator was faster, or it was ended before its file was read.
    """
    if meta is None:
        return _GONE
    validator = Validator(
        batch.endpoint,
        batch.params,
        max_lines=settings.max_lines,
        chunk_inputs=settings.chunk_inputs,
        chunk_bytes=settings.chunk_bytes,
    )
    try:
        pieces = 0
        async for data in store.stream(data_path(folder, meta.id), 0, meta.size_bytes):
            pieces += 1
            if not pieces % _LOOK_PIECES and await is_planned():
                return None
            for at in range(0, len(data), _VALIDATED_BYTES):
                validator.add(data[at : at + _VALIDATED_BYTES])
                await sleep(_REST_S)
            if validator.is_over:
                break
    except ObjectGone:
        return _GONE
    return validator.end(now_s())
