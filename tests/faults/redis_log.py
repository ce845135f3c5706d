"""Read what a Redis wrote down: its append-only file holds every write in the order in which it happened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.expected import Oracle


def commands(folder: Path) -> Iterator[list[bytes]]:
    """Every write of a server with this data folder; a last one that was cut off by a kill is left out."""
    for file in sorted(folder.glob("appendonlydir/*.incr.aof"), key=lambda file: int(file.name.split(".")[2])):
        data, at = file.read_bytes(), 0
        while at < len(data):
            end = data.find(b"\r\n", at)
            command, position = list[bytes](), end + 2
            for _ in range(int(data[at + 1 : end])):
                end = data.find(b"\r\n", position)
                size = int(data[position + 1 : end])
                command.append(data[end + 2 : end + 2 + size])
                position = end + 2 + size + 2
            if position > len(data):
                break
            at = position
            yield command


@dataclass(slots=True)
class Fate:
    """One entry of the request stream, and what came of it; times are Redis's, in milliseconds."""

    request_id: str
    sent_ms: int
    replies: int = 0
    letters: int = 0
    replied_ms: int = 0
    acknowledged: bool = False


@dataclass
class Ledger:
    """Holds everything that came out against everything that went in.

    `texts`: of each request that was sent, by its id; `group`: whose replies they are. `early` counts entries that were
    acknowledged or deleted before their reply was in the log.
    """

    stream: str
    replies: str
    group: str
    texts: Mapping[str, str]
    fates: dict[bytes, Fate] = field(default_factory=dict[bytes, Fate])
    wrong: list[str] = field(default_factory=list[str])
    early: int = 0
    reply_times_ms: list[int] = field(default_factory=list[int])
    _by_reply_id: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _oracle: Oracle = field(default_factory=Oracle)

    def take(self, command: list[bytes]) -> None:
        """The next write."""
        name, key = command[0].upper(), command[1].decode() if len(command) > 1 else ""
        if name == b"XADD" and key == self.stream:
            self._sent(*_added(command))
        elif name == b"XADD" and key == self.replies:
            self._replied(*_added(command))
        elif name == b"XADD" and key == f"{self.stream}-dlt":
            fate = self.fates[_added(command)[1][b"dlt-original-id"]]
            fate.letters += 1
        elif name in {b"XACK", b"XDEL"} and key == self.stream:
            for entry_id in command[3 if name == b"XACK" else 2 :]:
                fate = self.fates[entry_id]
                self.early += not (fate.replies or fate.letters)
                fate.acknowledged = True

    def _sent(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        request_id = pb.EmbedRequest.FromString(fields[b"value"]).request_id
        self.fates[entry_id] = Fate(request_id, int(entry_id.partition(b"-")[0]))
        place = f"{self.group}\0{self.stream}\0{entry_id.decode()}\0{request_id}"
        self._by_reply_id[hashlib.blake2b(place.encode(), digest_size=16).hexdigest()] = entry_id

    def _replied(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        answer = pb.EmbedResponse.FromString(fields[b"value"])
        origin = self._by_reply_id.get(answer.reply_id)
        if origin is None or self.fates[origin].request_id != answer.request_id:
            self.wrong.append(f"a reply has the ids {answer.request_id} and {answer.reply_id}, which no request has")
            return
        fate, now_ms = self.fates[origin], int(entry_id.partition(b"-")[0])
        fate.replies += 1
        fate.replied_ms = fate.replied_ms or now_ms
        self.reply_times_ms.append(now_ms)
        if answer.status.code:
            self.wrong.append(f"{answer.request_id} was answered {answer.status.code}: {answer.status.message}")
        elif not self._oracle.agrees(self.texts[answer.request_id], answer.embeddings[0].embedding):
            self.wrong.append(f"the reply to {answer.request_id} holds another vector than its text's")

    @property
    def lost(self) -> list[bytes]:
        """Requests without an outcome."""
        return [entry_id for entry_id, fate in self.fates.items() if not (fate.replies or fate.letters)]


def _added(command: list[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """The id and fields of an XADD, whose id stands behind what trims the stream."""
    at = next(place for place, part in enumerate(command) if place > 1 and _is_id(part))
    return command[at], dict(zip(command[at + 1 :: 2], command[at + 2 :: 2], strict=True))


def _is_id(part: bytes) -> bool:
    first, dash, second = part.partition(b"-")
    return bool(dash) and first.isdigit() and second.isdigit()
