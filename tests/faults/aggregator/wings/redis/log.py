"""Read what a Redis wrote down: its append-only file holds every write in the order in which it happened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.checker import Checker, Fate
from tests.faults.topic_logs import Commit


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


@dataclass
class Ledger(Checker):
    """Holds the entries that came out of Redis against those that went in.

    `early` counts entries that were acknowledged or deleted before their reply was in the log.
    """

    stream: str = ""
    replies: str = ""
    early: int = 0
    _by_reply_id: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def take(self, command: list[bytes]) -> None:
        name, key = command[0].upper(), command[1].decode() if len(command) > 1 else ""
        if name == b"XADD" and key == self.stream:
            self._sent(*_added(command))
        elif name == b"XADD" and key == self.replies:
            self._replied(*_added(command))
        elif name == b"XADD" and key == f"{self.stream}-dlt":
            entry_id, fields = _added(command)
            fate = self.fates[fields[b"dlt-original-id"]]
            fate.letters += 1
            fate.buried_ms = min(fate.buried_ms, _ms(entry_id))
        elif name in {b"XACK", b"XDEL"} and key == self.stream:
            for entry_id in command[3 if name == b"XACK" else 2 :]:
                fate = self.fates[entry_id]
                self.early += not (fate.replies or fate.letters)

    def _sent(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        request_id = pb.EmbedRequest.FromString(fields[b"value"]).request_id
        now_ms = _ms(entry_id)
        self.fates[entry_id] = Fate(self.stream, 0, 0, now_ms, now_ms, b"", self.intents[request_id.encode()])
        place = f"{self.group}\0{self.stream}\0{entry_id.decode()}\0{request_id}"
        self._by_reply_id[hashlib.blake2b(place.encode(), digest_size=16).hexdigest()] = entry_id

    def _replied(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        answer = pb.EmbedResponse.FromString(fields[b"value"])
        origin = self._by_reply_id.get(answer.reply_id)
        if origin is None:
            self.wrong.append(f"a reply has the ids {answer.request_id} and {answer.reply_id}, which no request has")
            return
        fate, now_ms = self.fates[origin], _ms(entry_id)
        fate.replies += 1
        fate.replied_ms = min(fate.replied_ms, now_ms)
        self.reply_times_ms.append(now_ms)
        if answer.status.code:
            self.wrong.append(f"{answer.request_id} was answered {answer.status.code}: {answer.status.message}")
        elif fate.intent is not self.intents.get(answer.request_id.encode()) or not self.agrees(fate, answer):
            self.wrong.append(f"the reply to {answer.request_id} holds another vector than its text's")

    @override
    def early_commits(self, commits: Sequence[Commit]) -> int:
        return self.early


def _ms(entry_id: bytes) -> int:
    """When Redis took an entry."""
    return int(entry_id.partition(b"-")[0])


def _added(command: list[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """The id and fields of an XADD, whose id stands behind what trims the stream."""
    at = next(place for place, part in enumerate(command) if place > 1 and _is_id(part))
    return command[at], dict(zip(command[at + 1 :: 2], command[at + 2 :: 2], strict=True))


def _is_id(part: bytes) -> bool:
    first, dash, second = part.partition(b"-")
    return bool(dash) and first.isdigit() and second.isdigit()
