"""The objects of the store: what each says, and where it lies. All are written once, and none is ever changed.

    t/TENANT/files/FILE/data             as it was uploaded
    t/TENANT/files/FILE/meta             it is whole: its name, size and expiry
    t/TENANT/batches/BATCH/batch         what was asked for
    t/TENANT/batches/BATCH/plan          its chunks; or
    t/TENANT/batches/BATCH/errors        why its file is refused
    t/TENANT/batches/BATCH/cancel        it is to end
    t/TENANT/batches/BATCH/parts/000017  the answers of a chunk
    t/TENANT/batches/BATCH/result        every chunk has its part: the counts, and where its lines are in the parts
    t/TENANT/batches/BATCH/output.gone   the caller deleted the file with that name

TENANT is a digest, and ids are made here, so nothing that a caller sends becomes a path.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from typing import Any

import msgspec

_FILE = re.compile(r"file-([0-9a-f]{32})(-output|-errors)?")
_BATCH = re.compile(r"batch_([0-9a-f]{32})")
_HEAD_BYTES = 192
LONGEST_WINDOW_S = 7 * 86400
"""Of the completion of a batch: as long as Kafka keeps the records of chunks by default."""
MOST_EXPIRES_AFTER_S = 10 * 365 * 86400
"""Ten years, of any file: a number without a bound is no time."""


class Kind(StrEnum):
    """The files of a batch."""

    INPUT = ""
    OUTPUT = "output"
    ERRORS = "errors"


WRITTEN = Kind.OUTPUT, Kind.ERRORS
"""What a batch writes."""


class FileMeta(msgspec.Struct, frozen=True):
    """An uploaded file. Times are Unix seconds; `expires_s` 0: never."""

    id: str
    filename: str
    size_bytes: int
    created_s: float
    expires_s: float = 0.0


class Batch(msgspec.Struct, frozen=True):
    """A batch as it was asked for. `params`: fields of every line's body that the line does not have itself."""

    id: str
    tenant: str
    input_file_id: str
    endpoint: str
    completion_window: str
    created_s: float
    expires_s: float
    metadata: dict[str, str] | None = None
    output_expires_after_s: int = 0
    params: dict[str, Any] = {}
    trusts_tenant: bool = True


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A chunk: the lines of a file from byte `start` on."""

    start: int
    length: int
    lines: int


class Plan(msgspec.Struct, frozen=True):
    """A valid file, cut into chunks; none of a batch that was ended before its file was read."""

    at_s: float
    model: str
    chunks: tuple[Slice, ...]

    @property
    def lines(self) -> int:
        return sum(each.lines for each in self.chunks)


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a file; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    """Why a file is refused."""

    at_s: float
    problems: tuple[Problem, ...]


class Cancel(msgspec.Struct, frozen=True):
    """A batch is to end."""

    at_s: float


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The begin of a part: its lines that succeeded, with `output_bytes`, come before those that failed.

    `size_bytes`: of the whole part. `expired`, `cancelled`: how many of the failed ones are that. `lost`: how many of
    them have no line here, as the input was gone before they were read.
    """

    at_s: float
    completed: int
    failed: int
    output_bytes: int
    size_bytes: int
    tokens: int
    output_tokens: int = 0
    expired: int = 0
    cancelled: int = 0
    lost: int = 0


class Result(msgspec.Struct, frozen=True):
    """All parts of a batch that ended."""

    heads: tuple[Head, ...]


class Pointer(msgspec.Struct, frozen=True):
    """The value of a record. With `chunk` below 0 the whole batch is to be validated and cut into chunks."""

    folder: str
    batch: str
    chunk: int = -1
    start: int = 0
    length: int = 0
    lines: int = 0
    expires_s: float = 0.0
    model: str = ""


def new_id(prefix: str, now_s: float) -> str:
    """A new id: ids sort by their time."""
    return f"{prefix}{int(now_s * 1000):012x}{secrets.token_hex(10)}"


def created_since(folder: str, at_s: float) -> str:
    """What the paths of batches that were created from a time on (Unix) sort behind."""
    return f"{folder}/batches/batch_{int(at_s * 1000):012x}"


def folder_of(tenant: str) -> str:
    return f"t/{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"


def file_of(file_id: str) -> tuple[str, Kind] | None:
    """The id of a file, or of the batch that wrote it, and which of its files it is; None for what is no id."""
    found = _FILE.fullmatch(file_id)
    if found is None:
        return None
    digits, kind = found.groups()
    return (file_id, Kind.INPUT) if kind is None else (f"batch_{digits}", Kind(kind[1:]))


def is_batch(batch_id: str) -> bool:
    return _BATCH.fullmatch(batch_id) is not None


def written_id(batch_id: str, kind: Kind) -> str:
    """The id of a file that a batch writes."""
    return f"file-{batch_id.removeprefix('batch_')}-{kind}"


def data_path(folder: str, file_id: str) -> str:
    return f"{folder}/files/{file_id}/data"


def meta_path(folder: str, file_id: str) -> str:
    return f"{folder}/files/{file_id}/meta"


def batch_path(folder: str, batch_id: str, name: str) -> str:
    return f"{folder}/batches/{batch_id}/{name}"


def part_path(folder: str, batch_id: str, chunk: int) -> str:
    return f"{folder}/batches/{batch_id}/parts/{chunk:06d}"


def to_bytes(head: Head) -> bytes:
    """Of one length, so that it is read without the rest."""
    return msgspec.json.encode(head).ljust(_HEAD_BYTES - 1) + b"\n"


def head_of(data: bytes) -> Head:
    return _HEAD.decode(data[:_HEAD_BYTES])


HEAD_BYTES = _HEAD_BYTES
_HEAD = msgspec.json.Decoder(Head)
