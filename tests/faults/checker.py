"""Hold everything that came out against everything that went in: nothing lost, nothing wrong, no offset ahead."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aggregator.errors import Code
from tests.faults.expected import Oracle
from tests.faults.steady_load import Intent
from tests.faults.topic_logs import Commit
from tests.support.kafka_client import headers, read

_EXAMPLES = 5
_GOOD = "OK"
_NEVER_MS = 2**62
_BY_PRODUCER = 0


class Said(NamedTuple):
    """What one reply said, and when the broker took it."""

    at_ms: int
    code: str
    model_revision: str
    replay: bool


@dataclass(slots=True)
class Fate:
    """One record of the requests topic, and what came of it; times are the broker's, in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    sent_ms: int
    value_digest: bytes
    intent: Intent
    replies: int = 0
    letters: int = 0
    replied_ms: int = _NEVER_MS
    buried_ms: int = _NEVER_MS
    reply_id: str = ""
    said: list[Said] = field(default_factory=list[Said])

    @property
    def completed_ms(self) -> int:
        """When its outcome was in the log: from then on it may be committed."""
        if self.replies and self.letters:
            return max(self.replied_ms, self.buried_ms) if self.intent.dead else min(self.replied_ms, self.buried_ms)
        return _NEVER_MS if self.intent.dead and not self.letters else min(self.replied_ms, self.buried_ms)


@dataclass
class Checker:
    """Takes in the topics record by record, inputs first; then `lost`, `wrong` and the rest say what was found.

    `intents`: what is to become of each record, by key; `group`: whose replies they are; `topic_ids`: the broker's, of
    the topics of requests; `corrupt_batches` counts dead letters of whole batches, which have no key.
    """

    intents: Mapping[bytes, Intent]
    group: str
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    fates: dict[bytes, Fate] = field(default_factory=dict[bytes, Fate])
    reply_times_ms: list[int] = field(default_factory=list[int])
    wrong: list[str] = field(default_factory=list[str])
    unlike_twins: list[str] = field(default_factory=list[str])
    corrupt_batches: int = 0
    oracle: Oracle = field(default_factory=Oracle)

    def take_input(self, record: Any) -> None:
        intent = self.intents.get(record.key)
        if intent is None or record.key in self.fates:
            self.wrong.append(f"the requests hold {record.key!r}, which was never sent, or not twice")
            return
        digest = _digest(record.value)
        place = (record.topic, record.partition, record.offset, record.timestamp)
        dated = record.timestamp_type == _BY_PRODUCER
        sent_ms = record.timestamp - int(intent.clock_s * 1000) * dated
        self.fates[record.key] = Fate(*place, sent_ms, digest, intent)

    def take_reply(self, record: Any) -> None:
        fate = self.fates.get(record.key)
        if fate is None:
            self.wrong.append(f"a reply has the key {record.key!r}, which no request has")
            return
        told = dict(record.headers)
        answer = read(record)
        fate.replies += 1
        fate.replied_ms = min(fate.replied_ms, record.timestamp)
        self.reply_times_ms.append(record.timestamp)
        if fate.reply_id not in {"", answer.reply_id}:
            self.unlike_twins.append(f"{record.key!r} has the reply ids {fate.reply_id} and {answer.reply_id}")
        fate.reply_id = answer.reply_id
        code = Code(answer.status.code).name
        if (told.get("replay") == b"true") != answer.replay:
            self.wrong.append(f"header and message of a reply to {record.key!r} differ about a replay")
        fate.said.append(Said(record.timestamp, code, answer.model_revision, answer.replay))
        if code not in fate.intent.codes:
            self.wrong.append(f"{record.key!r} was answered {code}: {answer.status.message}")
        elif code == _GOOD and fate.intent.text is not None:
            self._check_answer(record.key, fate, answer)

    def _check_answer(self, key: bytes, fate: Fate, answer: Any) -> None:
        if answer.request_id.encode() != key or answer.reply_id != self._reply_id(fate, answer.request_id):
            self.wrong.append(f"the reply to {key!r} has the ids {answer.request_id} and {answer.reply_id}")
        if not self.agrees(fate, answer):
            self.wrong.append(f"the reply to {key!r}, attempt {answer.attempt}, holds another vector than its text's")

    def _reply_id(self, fate: Fate, request_id: str) -> str:
        """As the wire contract has it: a hash of who read the request, where it stood, and its id."""
        topic_id = self.topic_ids.get(fate.topic, "")
        place = f"{fate.topic}\0{fate.partition}\0{fate.offset}\0{fate.timestamp_ms}\0{topic_id}"
        return hashlib.blake2b(f"{self.group}\0{place}\0{request_id}".encode(), digest_size=16).hexdigest()

    def agrees(self, fate: Fate, answer: Any) -> bool:
        """Whether an answer holds the one vector that it should."""
        assert fate.intent.text is not None
        return len(answer.embeddings) == 1 and self.oracle.agrees(fate.intent.text, answer.embeddings[0].embedding)

    def take_letter(self, record: Any) -> None:
        told = headers(record)
        if b"cannot be decoded" in told["dlt-error-message"]:
            self.corrupt_batches += 1
            return
        fate = self.fates.get(record.key)
        origin = (told["dlt-original-topic"], told["dlt-original-partition"], told["dlt-original-offset"])
        if fate is None or origin != (fate.topic.encode(), b"%d" % fate.partition, b"%d" % fate.offset):
            self.wrong.append(f"a dead letter has the key {record.key!r} and the origin {origin}")
            return
        fate.letters += 1
        fate.buried_ms = min(fate.buried_ms, record.timestamp)
        code = told["dlt-error-code"].decode()
        if not (fate.intent.dead and code in fate.intent.codes) and code not in fate.intent.may_die:
            self.wrong.append(f"{record.key!r} was dead-lettered with {code}: {told['dlt-error-message'].decode()}")
        kept = told.get("dlt-value-sha256", b"").decode() or _digest(record.value).hex()
        if kept != fate.value_digest.hex():
            self.wrong.append(f"the dead letter of {record.key!r} holds another value")

    @property
    def lost(self) -> list[bytes]:
        return [key for key, fate in self.fates.items() if fate.completed_ms == _NEVER_MS]

    @property
    def duplicates(self) -> int:
        return sum(max(0, fate.replies - 1) + max(0, fate.letters - 1) for fate in self.fates.values())

    def early_commits(self, commits: Sequence[Commit]) -> int:
        """Offsets that were committed before their outcome was in the log."""
        completed: dict[int, dict[int, int]] = {}
        for fate in self.fates.values():
            completed.setdefault(fate.partition, {})[fate.offset] = fate.completed_ms
        reached: dict[int, int] = {}
        early = 0
        for commit in commits:
            times = completed.get(commit.partition, {})
            start = reached.get(commit.partition, 0)
            early += sum(times.get(offset, 0) > commit.at_ms for offset in range(start, commit.offset))
            reached[commit.partition] = max(start, commit.offset)
        return early


def largest_regression(commits: Sequence[Commit]) -> int:
    """By how many records any commit went back behind one before it."""
    highest: dict[tuple[str, int], int] = {}
    regression = 0
    for commit in commits:
        partition = (commit.topic, commit.partition)
        before = highest.get(partition, commit.offset)
        regression = max(regression, before - commit.offset)
        highest[partition] = max(before, commit.offset)
    return regression


def examples(found: Sequence[object]) -> str:
    """The first few, and how many there are."""
    return f"{len(found)}, such as " + "; ".join(map(str, found[:_EXAMPLES]))


def _digest(value: bytes | None) -> bytes:
    return hashlib.sha256(value or b"").digest()
