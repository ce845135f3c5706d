"""A generated text as it grows: tokens become characters, exactly, and it ends before the first stop string."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from aggregator.admission.tokenizers.tokenizer import Detokenizer
from protos.generation.v1 import generation_pb2 as pb


@dataclass(slots=True, eq=False)
class Text:
    """What is asked of one text, and what there is of it so far.

    `messages`: a chat, which the model's template makes a prompt of. `prompt_ids` are int32 little endian. Times are
    monotonic seconds. `attempts`: how often a server failed beneath it. Since it last went well: the
    `failures` of servers, whether the last one had it `alone`, the `restarts` of those that failed, and by address the
    instances that did.
    `taken` tokens and characters were handed on.
    """

    sampling: pb.Sampling
    messages: Sequence[pb.Message] = ()
    include_token_ids: bool = False
    final_only: bool = False
    first_token_by_s: float = inf
    model_revision: str = ""
    prompt_ids: bytes = b""
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list[pb.TokenLogprobs])
    finish_reason: int = pb.FINISH_REASON_UNSPECIFIED
    stop: str = ""
    started_s: float = inf
    first_token_s: float = inf
    attempts: int = 0
    failures: int = 0
    restarts: int = 0
    alone: bool = False
    lost_instances: dict[str, str] = field(default_factory=dict[str, str])
    taken_tokens: int = 0
    _characters: str = ""
    _decoded: int = 0
    _stripped: int = 0
    _ready: int = 0
    _taken: int = 0
    _searched: int = 0
    _detokenizer: Detokenizer | None = None

    @property
    def left_tokens(self) -> int:
        """New tokens that may still come; 0 where the request sets no bound."""
        return max(1, self.sampling.max_tokens - len(self.token_ids)) if self.sampling.max_tokens else 0

    @property
    def ids_so_far(self) -> bytes:
        """What a server goes on from: the prompt and every new token."""
        return self.prompt_ids + self.token_ids.tobytes()

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self.finish_reason != pb.FINISH_REASON_UNSPECIFIED

    @property
    def characters(self) -> str:
        """All of it that is certain."""
        self._decode()
        return self._characters[: self._ready]

    def begin(self, model_revision: str, prompt_ids: bytes, detokenizer: Detokenizer) -> None:
        """It is to be generated after these ids, by that revision of the model."""
        self.model_revision = model_revision
        self.prompt_ids = prompt_ids
        self._detokenizer = detokenizer

    def start_anew(self) -> bool:
        """Forget what there is, for another revision of the model; False where some was handed on already."""
        if self.taken_tokens:
            return False
        self.token_ids, self.logprobs = array("i"), []
        self._characters, self._decoded, self._stripped, self._ready, self._searched = "", 0, 0, 0, 0
        return True

    def failed_on(self, address: str, instance_id: str, *, went_well: bool, alone: bool) -> None:
        """Its server failed beneath it, where it went well before or not, and was alone or not."""
        self.attempts += 1
        if went_well:
            self.failures = self.restarts = 0
            self.lost_instances.clear()
        self.failures += 1
        self.alone = alone
        self.lost_instances[address] = instance_id

    def begins_on(self, address: str, instance_id: str) -> bool:
        """A server is to generate it; whether that failed beneath it before, and was started again since."""
        restarted = self.lost_instances.pop(address, instance_id) != instance_id
        self.restarts += restarted
        return restarted

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[pb.TokenLogprobs], stripped: int = 0) -> bool:
        """New tokens came, the last `stripped` of them no text; whether a stop string ends the text now."""
        if not self.sampling.stop:  # its characters are needed when they are taken, and not before
            self.token_ids.extend(token_ids)
            self.logprobs += logprobs
            self._stripped = stripped
            return False
        for place, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            self._stripped = max(0, stripped - (len(token_ids) - place - 1))
            self._decode()
            if len(self.token_ids) > self.sampling.min_tokens and self._cut_at_stop():
                self.logprobs += logprobs[: place + 1]
                return True
            self._searched = len(self._characters)
        self.logprobs += logprobs
        self._ready = len(self._characters) - self._held_back()
        return False

    def end(self, *, cut: bool) -> None:
        """The engine says that it has ended, for want of room if it was `cut`."""
        self._decode()
        self.finish_reason = pb.FINISH_REASON_LENGTH if cut else pb.FINISH_REASON_STOP
        self._ready = len(self._characters)

    def take(self) -> tuple[int, str, Sequence[int], Sequence[pb.TokenLogprobs]]:
        """What is new since the last time: the first token's number, characters, ids, logprobs."""
        self._decode()
        first = self.taken_tokens
        characters = self._characters[self._taken : self._ready]
        ids, logprobs = self.token_ids[first:], self.logprobs[first:]
        self.taken_tokens, self._taken = len(self.token_ids), self._ready
        return first, characters, ids, logprobs

    def rewind(self) -> None:
        """Take all of it anew."""
        self.taken_tokens = self._taken = 0

    def _decode(self) -> None:
        """Turn the tokens that came since the last time into characters; they are certain but for stop strings."""
        ids = self.token_ids[self._decoded : len(self.token_ids) - self._stripped]
        if not ids:
            return
        assert self._detokenizer is not None, "A text gained tokens before it had a prompt. This is a bug."
        self._decoded += len(ids)
        self._characters += "".join(map(self._detokenizer.step, ids))
        if not self.sampling.stop:
            self._ready = len(self._characters)

    def _cut_at_stop(self) -> bool:
        """End it before the stop string that ends first in what is new, if there is one."""
        found: list[tuple[int, int]] = []
        for order, stop in enumerate(self.sampling.stop):
            place = self._characters.find(stop, max(0, self._searched - len(stop) + 1))
            if place >= 0:
                found.append((place + len(stop), order))
        if not found:
            return False
        end, order = min(found)
        self.stop = self.sampling.stop[order]
        self._characters = self._characters[: end - len(self.stop)]
        self._ready = len(self._characters)
        self.finish_reason = pb.FINISH_REASON_STOP
        return True

    def _held_back(self) -> int:
        """Characters at the end that may be the first ones of a stop string."""
        characters = self._characters
        sizes = (
            size for stop in self.sampling.stop for size in range(1, len(stop)) if characters.endswith(stop[:size])
        )
        return max(sizes, default=0)


def logprobs_of(
    width: int, token_ids: Sequence[int], values: Sequence[float], ranks: Sequence[int]
) -> list[pb.TokenLogprobs]:
    """Per token itself and its alternatives, from rows of `width`, each token first."""
    told: list[pb.TokenLogprobs] = []
    for row, rank in enumerate(ranks):
        start = row * width
        own = pb.TokenLogprob(token_id=token_ids[start], logprob=values[start], rank=rank)
        others = [
            pb.TokenLogprob(token_id=token_ids[start + place], logprob=values[start + place], rank=place)
            for place in range(1, width)
        ]
        told.append(pb.TokenLogprobs(token=own, alternatives=others))
    return told
