"""The lines of a chunk while they are computed, and the part that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from aggregator.errors import Code
from aggregator.request.request import Failure
from aggregator.sources.http.errors import described
from aggregator.wings.batches.objects import HEAD_BYTES, Head, to_bytes


class End(Enum):
    """Why a line was not computed: the code and the message in the error file."""

    EXPIRED = "batch_expired", "the request was not computed within the completion window of its batch"
    CANCELLED = "batch_cancelled", "the batch was cancelled before the request was computed"


def lost_part(lines: int, why: End | None, now_s: float) -> bytes:
    """The part of a chunk whose lines cannot be read any more: their count alone."""
    expired, cancelled = (lines if why is each else 0 for each in (End.EXPIRED, End.CANCELLED))
    return to_bytes(Head(now_s, 0, lines, 0, 0, 0, 0, expired, cancelled, lost=lines))


class Lines:
    """The answer of each line of a chunk, by its place; `left` have none yet."""

    def __init__(self, batch_id: str, chunk: int, custom_ids: Sequence[str]) -> None:
        self._prefix = f"batch_req_{batch_id.removeprefix('batch_')}_{chunk}"
        self._custom_ids = custom_ids
        self._good = [b""] * len(custom_ids)
        self._bad = [b""] * len(custom_ids)
        self._ended = {End.EXPIRED: 0, End.CANCELLED: 0}
        self._tokens = self._output_tokens = 0
        self.left = len(custom_ids)

    def request_id(self, place: int) -> str:
        return f"{self._prefix}_{place}"

    def is_open(self, place: int) -> bool:
        return not (self._good[place] or self._bad[place])

    def answer(self, place: int, request_id: str, body: bytes, tokens: int, output_tokens: int = 0) -> None:
        response = b'{"status_code":200,"request_id":%b,"body":%b}' % (msgspec.json.encode(request_id), body)
        self._good[place] = self._line(place, response, b"null")
        self._tokens += tokens
        self._output_tokens += output_tokens
        self.left -= 1

    def fail(self, place: int, failure: Failure) -> None:
        if failure.code is Code.DEADLINE_EXCEEDED:
            self.end(place, End.EXPIRED)
            return
        status, body, _ = described(failure)
        request_id = msgspec.json.encode(self.request_id(place))
        response = b'{"status_code":%d,"request_id":%b,"body":%b}' % (status, request_id, body)
        self._bad[place] = self._line(place, response, b"null")
        self.left -= 1

    def end(self, place: int, why: End) -> None:
        code, message = why.value
        self._bad[place] = self._line(place, b"null", msgspec.json.encode({"code": code, "message": message}))
        self._ended[why] += 1
        self.left -= 1

    def end_all(self, why: End) -> None:
        """End every line that has no answer."""
        for place in range(len(self._custom_ids)):
            if self.is_open(place):
                self.end(place, why)

    def pieces(self, now_s: float) -> Iterator[bytes]:
        """The part: its head with the counts, then the lines that succeeded, then the others, in the file's order."""
        assert not self.left, "A part is written that misses a line. This is a bug."
        good, bad = [*filter(None, self._good)], [*filter(None, self._bad)]
        output_bytes = sum(map(len, good))
        head = Head(
            now_s,
            len(good),
            len(bad),
            output_bytes,
            output_bytes + sum(map(len, bad)),
            self._tokens,
            self._output_tokens,
            self._ended[End.EXPIRED],
            self._ended[End.CANCELLED],
        )
        written = to_bytes(head)
        assert len(written) == HEAD_BYTES, "A part's head is too long. This is a bug."
        yield written
        yield from good
        yield from bad

    def part(self, now_s: float) -> bytes:
        return b"".join(self.pieces(now_s))

    def _line(self, place: int, response: bytes, error: bytes) -> bytes:
        ids = msgspec.json.encode(self.request_id(place)), msgspec.json.encode(self._custom_ids[place])
        return b'{"id":%b,"custom_id":%b,"response":%b,"error":%b}\n' % (*ids, response, error)
