"""A generated text as it grows: detokenized exactly, and ended before the first stop string."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from aggregator.request.request import Failure, Request, Result
from aggregator.tokenizers.tokenizer import Detokenizer
from aggregator.wings.generation.stops import StopString
from protos.generation.v1 import generation_pb2 as pb

TURN_LOGPROBS = 128
"""Each takes 7 µs to write."""

New = tuple[int, str, Sequence[int], Sequence[pb.TokenLogprobs]]
"""A part of a text: the index of its first token, its text, ids, logprobs."""


@dataclass(slots=True, eq=False)
class Generation(Result):
    """A generation: one prompt, how to sample, and the tokens so far.

    `messages`: a chat, from which the model's template makes the prompt. `prompt_ids` are int32 little endian. Times
    are monotonic seconds. `attempts` counts the servers that failed while they ran it, `failures` those since it was
    last cleared of suspicion. `sent_tokens`: how many tokens the source has read. `refusal`: why a chat has no
    prompt.
    """

    sampling: pb.Sampling
    messages: Sequence[pb.Message] = ()
    include_token_ids: bool = False
    final_only: bool = False
    first_token_by_s: float = inf
    model_revision: str = ""
    context_tokens: int = 0
    prompt_ids: bytes = b""
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list[pb.TokenLogprobs])
    finish_reason: int = pb.FINISH_REASON_UNSPECIFIED
    stop: str = ""
    started_s: float = inf
    first_token_s: float = inf
    attempts: int = 0
    failures: int = 0
    sent_tokens: int = 0
    refusal: Failure | None = None
    _text: str = ""
    _decoded: int = 0
    _stop_tokens: int = 0
    _ready: int = 0
    _sent: int = 0
    _searched: int = 0
    _stops: list[StopString] = field(default_factory=list[StopString])
    _detokenizer: Detokenizer | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids) // 4

    @property
    def prompt_field(self) -> str:
        """The field of the request that has the prompt."""
        return "messages" if self.messages else "prompt"

    @property
    def left_tokens(self) -> int:
        """New tokens that may still come, within the model's context once that is known; 0 if there is no limit."""
        most = self.sampling.max_tokens
        if most and self.context_tokens:
            most = min(most, self.context_tokens - self.prompt_tokens)
        return max(1, most - len(self.token_ids)) if self.sampling.max_tokens else 0

    @property
    def ids_so_far(self) -> bytes:
        """The prompt and every new token, int32 little endian: another server resumes after these."""
        return self.prompt_ids + self.token_ids.tobytes()

    @property
    def finished(self) -> bool:
        return self.finish_reason != pb.FINISH_REASON_UNSPECIFIED

    @property
    def text(self) -> str:
        """The decoded text, without an end that may begin a stop string."""
        self._detokenize()
        return self._text[: self._ready]

    def begin(self, model_revision: str, prompt_ids: bytes, detokenizer: Detokenizer, context_tokens: int = 0) -> None:
        """Set the prompt (int32 little endian) and the revision that generates, with its context (0: not known)."""
        self.model_revision = model_revision
        self.context_tokens = context_tokens
        self.prompt_ids = prompt_ids
        self._detokenizer = detokenizer

    def restart(self) -> bool:
        """Drop all tokens, so that another model revision starts over; False if some were sent already."""
        if self.sent_tokens:
            return False
        self.token_ids, self.logprobs = array("i"), []
        self._text, self._decoded, self._stop_tokens, self._ready, self._searched = "", 0, 0, 0, 0
        self._stops = []
        return True

    def server_failed(self, *, cleared: bool) -> None:
        """Record that its server failed; `cleared`: it had run long enough to be no suspect."""
        self.attempts += 1
        self.failures = 1 if cleared else self.failures + 1

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[pb.TokenLogprobs], stop_tokens: int = 0) -> bool:
        """Add tokens, of which the last `stop_tokens` are not text. Returns whether a stop string ends the text."""
        if not self.sampling.stop:  # decoded when it is read
            self.token_ids.extend(token_ids)
            self.logprobs += logprobs
            self._stop_tokens = stop_tokens
            return False
        for place, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            self._stop_tokens = max(0, stop_tokens - (len(token_ids) - place - 1))
            self._detokenize()
            if self._ends_at_stop():
                self.logprobs += logprobs[: place + 1]
                return True
        self.logprobs += logprobs
        self._ready = len(self._text) - max((stop.held for stop in self._stops), default=0)
        return False

    def end(self, finish_reason: int) -> None:
        self._detokenize()
        self.finish_reason = finish_reason
        self._ready = len(self._text)

    def read_new(self) -> New:
        """The new part since the last call."""
        self._detokenize()
        first = self.sent_tokens
        text = self._text[self._sent : self._ready]
        ids, logprobs = self.token_ids[first:], self.logprobs[first:]
        self.sent_tokens, self._sent = len(self.token_ids), self._ready
        return first, text, ids, logprobs

    def restart_stream(self) -> None:
        """Let the next `read_new` return everything."""
        self.sent_tokens = self._sent = 0

    def _detokenize(self) -> None:
        ids = self.token_ids[self._decoded : len(self.token_ids) - self._stop_tokens]
        if not ids:
            return
        assert self._detokenizer is not None, "A generation got tokens before its prompt was set. This is a bug."
        self._decoded += len(ids)
        self._text += "".join(map(self._detokenizer.step, ids))
        if not self.sampling.stop:
            self._ready = len(self._text)

    def _ends_at_stop(self) -> bool:
        """End before the stop string that is complete first in the new text, if there is one."""
        if not self._stops:
            self._stops = [StopString(stop) for stop in self.sampling.stop]
        new = self._text[self._searched :]
        ends = [(end, order) for order, stop in enumerate(self._stops) if (end := stop.read(new))]
        before, self._searched = self._searched, len(self._text)
        if not ends or len(self.token_ids) <= self.sampling.min_tokens:
            return False
        end, order = min(ends)
        self.stop = self.sampling.stop[order]
        self._text = self._text[: before + end - len(self.stop)]
        self._ready = len(self._text)
        self.finish_reason = pb.FINISH_REASON_STOP
        return True


def writes_long(generated: Generation, logprobs: Sequence[pb.TokenLogprobs]) -> bool:
    """Whether these take more than a millisecond to write as JSON."""
    return logprobs_in(generated, logprobs) > TURN_LOGPROBS


def logprobs_in(generated: Generation, logprobs: Sequence[pb.TokenLogprobs]) -> int:
    return len(logprobs) * (1 + generated.sampling.logprobs)


def generation_of(request: Request) -> Generation:
    details = request.details
    assert isinstance(details, Generation), "A request without a generation was to be generated. This is a bug."
    return details


def logprobs_of(
    width: int, token_ids: Sequence[int], values: Sequence[float], ranks: Sequence[int]
) -> list[pb.TokenLogprobs]:
    """One message per token, from rows of `width`: the token first, then its alternatives."""
    logprobs: list[pb.TokenLogprobs] = []
    for row, rank in enumerate(ranks):
        start = row * width
        own = pb.TokenLogprob(token_id=token_ids[start], logprob=values[start], rank=rank)
        others = [
            pb.TokenLogprob(token_id=token_ids[start + place], logprob=values[start + place], rank=place)
            for place in range(1, width)
        ]
        logprobs.append(pb.TokenLogprobs(token=own, alternatives=others))
    return logprobs
