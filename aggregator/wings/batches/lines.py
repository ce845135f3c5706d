"""Validate a file of requests, line by line, and cut it into chunks; decode a chunk's lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from aggregator.errors import shown
from aggregator.wings.batches.objects import Plan, Problem, Slice
from aggregator.wings.batches.store import ObjectGone

_MOST_PROBLEMS = 100
"""Of a file whose every line is wrong the first ones say enough."""
MAX_LINE_BYTES = 4 * 1024 * 1024
"""As a call's body."""
_MOST_ID_CHARACTERS = 512
_COUNTED_BYTES = 64 * 1024
"""A longer body is a chunk by itself, because counting its inputs would take too long."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MALFORMED = msgspec.DecodeError, UnicodeDecodeError, RecursionError
"""The errors of bytes that are not the JSON that is expected."""


class Line(msgspec.Struct, frozen=True):
    """A request of OpenAI's form; Voyage's has `custom_id` and `body` alone."""

    custom_id: str
    body: msgspec.Raw
    method: str = "POST"
    url: str = ""


class _Model(msgspec.Struct):
    """The field that all lines of a file have alike."""

    model: Any = None


class _Body(_Model):
    """The fields that say how much a request asks for, whatever its endpoint."""

    input: Any = None
    inputs: Any = None
    texts: Any = None
    documents: Any = None
    text_1: Any = None
    text_2: Any = None


_LINE, _MODEL, _BODY = msgspec.json.Decoder(Line), msgspec.json.Decoder(_Model), msgspec.json.Decoder(_Body)
_LISTS = ("input", "inputs", "texts", "documents", "text_1", "text_2")


def lines_of(data: bytes) -> Iterator[bytes]:
    """The lines of a file's part that hold something."""
    for raw in data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
        if raw.strip():
            yield raw


def decoded(raw: bytes) -> Line:
    """A valid line."""
    return _LINE.decode(raw)


def lines_with_ids(data: bytes | None, lines: int) -> tuple[list[bytes], list[str]]:
    """The `lines` lines of a chunk's bytes, and their ids. Raises ObjectGone for others: its file was valid once."""
    try:
        raws = [*lines_of(data or b"")]
        ids = [decoded(raw).custom_id for raw in raws]
    except MALFORMED as error:
        raise ObjectGone("the batch's file is not what it was") from error
    if len(ids) != lines:
        raise ObjectGone("the batch's file is gone, or is not what it was")
    return raws, ids


def body_of(line: Line, params: Mapping[str, Any]) -> bytes:
    """The body of a line, with the fields of its batch that it does not have itself."""
    if not params:
        return bytes(line.body)
    try:
        own = msgspec.json.decode(line.body, type=dict[str, msgspec.Raw])
    except MALFORMED:  # the door says what is wrong with it
        return bytes(line.body)
    return msgspec.json.encode({**params, **own})


class Validator:
    """Takes a file's bytes in order; then `end` gives its plan or its problems."""

    def __init__(
        self, endpoint: str, params: Mapping[str, Any], *, max_lines: int, chunk_inputs: int, chunk_bytes: int
    ) -> None:
        self._endpoint = endpoint
        self._model = str(params.get("model") or "")
        self._max_lines, self._chunk_inputs, self._chunk_bytes = max_lines, chunk_inputs, chunk_bytes
        self._tail = b""
        self._skips = False
        """Up to the end of a line that is refused already, as it is too long."""
        self._at = self._number = self._lines = 0
        self._ids: set[str] = set()
        self._chunks: list[Slice] = []
        self._start = self._chunk_lines = self._inputs = 0
        self._problems: list[Problem] = []

    @property
    def is_over(self) -> bool:
        """Whether the rest of the file changes nothing."""
        return len(self._problems) >= _MOST_PROBLEMS or self._lines > self._max_lines

    def add(self, data: bytes) -> None:
        if self._skips:
            _, end, data = data.partition(b"\n")
            self._skips = not end
        *whole, self._tail = (self._tail + data).split(b"\n")
        for raw in whole:
            if raw:
                self._take(raw, len(raw) + 1)
            else:  # quickly: a file may have nothing else
                self._number, self._at = self._number + 1, self._at + 1
        if len(self._tail) > MAX_LINE_BYTES:
            self._take(self._tail, len(self._tail))
            self._tail, self._skips = b"", True

    def end(self, now_s: float) -> Plan | tuple[Problem, ...]:
        if self._tail:
            self._take(self._tail, len(self._tail))
        if self._lines > self._max_lines:
            message = f"the file has more than {self._max_lines} requests: send it in several files"
            return (Problem("too_many_tasks", message), *self._problems)
        if not self._lines and not self._problems:
            return (Problem("empty_file", "the file has no request: send one a line"),)
        if self._problems:
            return tuple(self._problems)
        self._cut()
        return Plan(now_s, self._model, tuple(self._chunks))

    def _take(self, raw: bytes, size: int) -> None:
        """One line, which takes `size` bytes with its end; after one that is refused no byte counts."""
        self._number += 1
        start, self._at = self._at, self._at + size
        if self.is_over or (len(raw) <= MAX_LINE_BYTES and not raw.strip()):
            return
        if not start:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        self._lines += 1
        line = self._checked(raw)
        if line is None:
            return
        inputs = self._counted(line)
        if self._chunk_lines and (
            self._inputs + inputs > self._chunk_inputs or self._at - self._start > self._chunk_bytes
        ):
            self._cut(start)
        self._chunk_lines += 1
        self._inputs += inputs

    def _checked(self, raw: bytes) -> Line | None:
        if len(raw) > MAX_LINE_BYTES:
            self._refuse(
                "invalid_json_line", f"the line has more than {MAX_LINE_BYTES} bytes: send fewer inputs in one"
            )
            return None
        try:
            line = _LINE.decode(raw)
        except MALFORMED as error:
            what = str(error).partition(" - at")[0].replace("Object missing", "it misses the")
            self._refuse("invalid_json_line", f"the line is no request with custom_id and body: {what}")
            return None
        if not line.custom_id or len(line.custom_id) > _MOST_ID_CHARACTERS:
            message = f"expected 1 to {_MOST_ID_CHARACTERS} characters"
            self._refuse("invalid_custom_id", message, "custom_id")
        elif line.custom_id in self._ids:
            message = f"custom_id {shown(line.custom_id)} is that of an earlier line"
            self._refuse("duplicate_custom_id", message, "custom_id")
        elif line.method != "POST":
            self._refuse("invalid_method", f"expected POST, got {shown(line.method)}", "method")
        elif line.url and line.url != self._endpoint:
            message = f"the line's url is {shown(line.url)}, and its batch's endpoint {self._endpoint}"
            self._refuse("url_mismatch", message, "url")
        else:
            self._ids.add(line.custom_id)
            return line
        return None

    def _counted(self, line: Line) -> int:
        """Its inputs, about; checks that it asks for the same model as the lines before it."""
        body: _Model
        try:
            body = (_BODY if len(line.body) <= _COUNTED_BYTES else _MODEL).decode(line.body)
        except MALFORMED:
            return 1  # the door says what is wrong with it
        if isinstance(body.model, str) and body.model:
            if self._model and body.model != self._model:
                message = f"the line asks for model {shown(body.model)}, and those before it for {shown(self._model)}"
                self._refuse("model_mismatch", message, "model")
            self._model = self._model or body.model
        if not isinstance(body, _Body):
            return self._chunk_inputs
        lists = [found for name in _LISTS if isinstance(found := getattr(body, name), list)]
        return max(1, sum(map(_inputs_in, lists)))

    def _cut(self, at: int | None = None) -> None:
        """End a chunk before the byte `at`, or at the end of what has come."""
        end = self._at if at is None else at
        self._chunks.append(Slice(self._start, end - self._start, self._chunk_lines))
        self._start, self._chunk_lines, self._inputs = end, 0, 0

    def _refuse(self, code: str, message: str, param: str | None = None) -> None:
        self._problems.append(Problem(code, message, self._number, param))


def _inputs_in(found: list[Any]) -> int:
    """Texts, lists of texts, token ids of one input, or of each."""
    if found and isinstance(found[0], int):
        return 1
    return sum(len(each) if isinstance(each, list) and each and isinstance(each[0], str) else 1 for each in found)
