"""A batch's status and counts, which follow from the objects that there are; files and batches as OpenAI shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from aggregator.wings.batches.objects import (
    MOST_EXPIRES_AFTER_S,
    Batch,
    Cancel,
    FileMeta,
    Head,
    Kind,
    Plan,
    Problem,
    Refusal,
    Result,
    written_id,
)


class Status(StrEnum):
    """Of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


@dataclass(frozen=True)
class Seen:
    """What the store has of a batch. `heads`: of the parts that there are; `gone`: the files that were deleted.

    Whatever looks at all parts does so once: there may be thousands.
    """

    batch: Batch
    plan: Plan | None = None
    refusal: Refusal | None = None
    cancel: Cancel | None = None
    heads: Mapping[int, Head] = field(default_factory=dict)
    result: Result | None = None
    gone: frozenset[Kind] = frozenset()

    @cached_property
    def parts(self) -> Sequence[Head]:
        return self.result.heads if self.result is not None else tuple(self.heads.values())

    @property
    def is_whole(self) -> bool:
        """Whether every chunk has its part."""
        return self.result is not None or (self.plan is not None and len(self.heads) == len(self.plan.chunks))

    @cached_property
    def status(self) -> Status:
        if self.refusal is not None:
            return Status.FAILED
        if self.is_whole:
            if not self.parts:  # it was ended before its file was read
                return Status.EXPIRED if self.cancel is None else Status.CANCELLED
            if any(each.cancelled for each in self.parts):
                return Status.CANCELLED
            if any(each.expired for each in self.parts):
                return Status.EXPIRED
            return Status.FAILED if self.lost else Status.COMPLETED
        if self.cancel is not None:
            return Status.CANCELLING
        return Status.VALIDATING if self.plan is None else Status.IN_PROGRESS

    @cached_property
    def lost(self) -> int:
        """Lines that were not computed, as the input was gone."""
        return sum(each.lost for each in self.parts) if self.is_whole else 0

    @property
    def problems(self) -> Sequence[Problem]:
        """What is wrong with its file."""
        if self.refusal is not None:
            return self.refusal.problems
        message = f"the file was deleted before its batch ended: {self.lost} of its requests were not computed"
        return (Problem("file_not_found", message),) if self.lost else ()

    @property
    def failed_s(self) -> float | None:
        if self.status is not Status.FAILED:
            return None
        return self.refusal.at_s if self.refusal is not None else self.ended_s

    @cached_property
    def ended_s(self) -> float:
        """When its last part was written."""
        return max((each.at_s for each in self.parts), default=self.plan.at_s if self.plan is not None else 0.0)

    @property
    def outputs_expire_s(self) -> float:
        """When the files that it wrote go; 0: never."""
        after_s = min(self.batch.output_expires_after_s, MOST_EXPIRES_AFTER_S)
        return self.ended_s + after_s if after_s and self.status.is_final else 0.0

    def size_bytes(self, kind: Kind) -> int:
        """Of a file that it wrote; 0: there is none."""
        if not self.status.is_final or kind in self.gone:
            return 0
        output = sum(each.output_bytes for each in self.parts)
        return output if kind is Kind.OUTPUT else sum(each.size_bytes for each in self.parts) - output


def shown_batch(seen: Seen) -> dict[str, Any]:
    """A batch as OpenAI's clients read it."""
    batch, plan, status = seen.batch, seen.plan, seen.status
    completed = sum(each.completed for each in seen.parts)
    failed = sum(each.failed for each in seen.parts)
    cancelled_s = seen.cancel.at_s if seen.cancel is not None else None

    def at(*among: Status) -> int | None:
        return int(seen.ended_s) if status in among else None

    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": (plan.model if plan is not None else None) or batch.params.get("model"),
        "errors": _errors(seen.problems),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": status.value,
        "output_file_id": written_id(batch.id, Kind.OUTPUT) if seen.size_bytes(Kind.OUTPUT) else None,
        "error_file_id": written_id(batch.id, Kind.ERRORS) if seen.size_bytes(Kind.ERRORS) else None,
        "created_at": int(batch.created_s),
        "in_progress_at": int(plan.at_s) if plan is not None else None,
        "expires_at": int(batch.expires_s),
        "finalizing_at": at(Status.COMPLETED, Status.EXPIRED, Status.CANCELLED),
        "completed_at": at(Status.COMPLETED),
        "failed_at": int(seen.failed_s) if seen.failed_s is not None else None,
        "expired_at": at(Status.EXPIRED),
        "cancelling_at": int(cancelled_s) if cancelled_s is not None else None,
        "cancelled_at": at(Status.CANCELLED),
        "request_counts": {
            "total": plan.lines if plan is not None else completed + failed,
            "completed": completed,
            "failed": failed,
        },
        "usage": _usage(seen.parts),
        "metadata": batch.metadata,
    }


def _usage(parts: Sequence[Head]) -> dict[str, Any]:
    read, made = sum(each.tokens for each in parts), sum(each.output_tokens for each in parts)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + made,
    }


def _errors(problems: Sequence[Problem]) -> dict[str, Any] | None:
    if not problems:
        return None
    data = [{"code": each.code, "message": each.message, "param": each.param, "line": each.line} for each in problems]
    return {"object": "list", "data": data}


def shown_file(meta: FileMeta) -> dict[str, Any]:
    """An uploaded file as OpenAI's clients read it."""
    return _file(meta.id, meta.filename, "batch", meta.size_bytes, created_s=meta.created_s, expires_s=meta.expires_s)


def shown_written(seen: Seen, kind: Kind) -> dict[str, Any] | None:
    """A file that a batch wrote; None where there is none."""
    size_bytes = seen.size_bytes(kind)
    if not size_bytes:
        return None
    file_id = written_id(seen.batch.id, kind)
    name = f"{seen.batch.id}_{kind}.jsonl"
    return _file(file_id, name, "batch_output", size_bytes, created_s=seen.ended_s, expires_s=seen.outputs_expire_s)


def _file(
    file_id: str, filename: str, purpose: str, size_bytes: int, *, created_s: float, expires_s: float
) -> dict[str, Any]:
    return {
        "id": file_id,
        "object": "file",
        "bytes": size_bytes,
        "created_at": int(created_s),
        "expires_at": int(expires_s) if expires_s else None,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


def page_of(listed: Sequence[dict[str, Any]], after: str, limit: int) -> dict[str, Any]:
    """A page of a list: `limit` of its objects behind the id `after`."""
    ids = [each["id"] for each in listed]
    begin = ids.index(after) + 1 if after in ids else 0
    data = listed[begin : begin + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": begin + limit < len(listed),
    }
