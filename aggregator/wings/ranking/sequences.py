"""The sequences of pairs: the texts to tokenize, and the pairs as the model wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from aggregator.admission.sequences import UNCOUNTABLE, fitted, limit_of, most_characters, too_long, unmarked
from aggregator.errors import Code
from aggregator.request.kind import Counted, Made, Revision
from aggregator.request.request import Failure, Input, Request
from aggregator.scheduler.work_item import ID_BYTES
from aggregator.wings.ranking.pairs import PairFrame
from aggregator.wings.ranking.scoring import scoring_of, template_of
from protos.embedding.v1 import embedding_pb2 as pb

_NO_ENDS = "", ""


class Pairs:
    """The pairs of one request; `frame`: how the tokenizer joins two texts, None: a template of text does.

    Of a pair the second text is cut, never the first.
    """

    def __init__(self, revision: Revision, frame: PairFrame | None, request: Request) -> None:
        self._revision, self._frame, self._request = revision, frame, request
        self._scoring, self._template = scoring_of(request), template_of(revision.description)

    def texts(self, indexes: Sequence[int]) -> Sequence[str]:
        """The texts to tokenize."""
        scoring, description, inputs = self._scoring, self._revision.description, self._request.inputs
        if scoring.ranks and description.labels:
            return self._refuse(f"{description.model} classifies and does not rank: ask for its scores", "model")
        firsts = self._firsts(indexes)
        if self._frame is not None:
            return [*firsts, *(str(inputs[index]) for index in indexes)]
        if None in scoring.firsts:
            return self._refuse(f"{description.model} scores pairs of texts, and no text by itself", "")
        if scoring.max_tokens_per_doc:
            message = f"{description.model} joins pairs by a template of text: documents are cut by truncate_to alone"
            return self._refuse(message, "max_tokens_per_doc")
        most = most_characters(self._revision)
        ends = {first: self._template.ends(first) if len(first) <= most else _NO_ENDS for first in firsts}
        return JoinedTexts(ends, scoring.firsts, inputs, indexes, most, self._request.options.truncate)

    def made(self, indexes: Sequence[int], counted: Sequence[Counted]) -> Iterator[Made]:
        """Two texts as the model joins them, or a text by itself."""
        revision, request = self._revision, self._request
        ends = self._ends(self._firsts(indexes), iter(counted))
        for index, found in zip(indexes, counted[len(counted) - len(indexes) :], strict=True):
            first = self._scoring.firsts[index]
            if isinstance(found, Failure):
                yield found
            elif first is None:
                alone = fitted(revision, request, found)
                yield self._marked(alone, 0 if isinstance(alone, Failure) else len(alone))
            elif isinstance(both := ends[first], Failure):
                yield both
            else:
                yield self._joined(*both, revision.tokenizer.without_special(found))

    def _refuse(self, message: str, field: str) -> Sequence[str]:
        self._request.fail(Failure(Code.INVALID_ARGUMENT, message, field=field))
        return ()

    def _firsts(self, indexes: Sequence[int]) -> list[str]:
        """The different first texts of pairs: each is tokenized once."""
        firsts = self._scoring.firsts
        return [first for first in dict.fromkeys(firsts[index] for index in indexes) if first is not None]

    def _ends(self, firsts: Sequence[str], counted: Iterator[Counted]) -> dict[str, tuple[bytes, bytes] | Failure]:
        """Of each first text, the tokens before and after the second text, or why no pair of it fits."""
        frame, bare = self._frame, self._revision.tokenizer.without_special
        ends: dict[str, tuple[bytes, bytes] | Failure] = {}
        for first in firsts:
            found, after = next(counted), frame.after if frame is not None else next(counted)
            if len(first) > most_characters(self._revision):
                ends[first] = self._no_room(f"has {len(first)} characters")
                continue
            if isinstance(found, Failure) or isinstance(after, Failure):
                ends[first] = found if isinstance(found, Failure) else UNCOUNTABLE
                continue
            both = (bare(found), bare(after)) if frame is None else (frame.before + bare(found) + frame.between, after)
            tokens = sum(map(len, both)) // ID_BYTES
            if tokens >= limit_of(self._revision, self._request):
                ends[first] = self._no_room(f"takes {tokens} tokens of a pair")
            else:
                ends[first] = both
        return ends

    def _no_room(self, found: str) -> Failure:
        limit = f"{self._revision.description.model} takes {limit_of(self._revision, self._request)} tokens"
        message = f"the query {found}, which leaves no room for a document: {limit}; send a shorter query"
        return Failure(Code.OUT_OF_RANGE, message, field="query")

    def _joined(self, before: bytes, after: bytes, second: bytes) -> Made:
        """A pair within the limit, its second text cut; with a template of text, `second` is the pair already."""
        framed, most = self._frame is not None, self._scoring.max_tokens_per_doc * ID_BYTES
        truncate = self._request.options.truncate
        if most:
            second = second[-most:] if truncate == pb.TRUNCATE_START else second[:most]
        whole, limit = before + second + after if framed else second, limit_of(self._revision, self._request) * ID_BYTES
        if len(whole) > limit:
            if truncate == pb.TRUNCATE_NONE:
                return too_long(self._revision, self._request, f"{len(whole) // ID_BYTES} tokens")
            if truncate == pb.TRUNCATE_START:
                whole = before + whole[len(whole) - (limit - len(before)) :]
            else:
                whole = whole[: limit - len(after)] + after
        return self._marked(whole, len(before) if framed else len(whole))

    def _marked(self, sequence: Counted, second_bytes: int) -> Made:
        """A sequence with the place at which its second text begins, if the model tells texts apart."""
        if isinstance(sequence, Failure) or not self._template.token_types:
            return unmarked(sequence)
        return sequence + (second_bytes // ID_BYTES).to_bytes(ID_BYTES, "little"), len(sequence) // ID_BYTES


class JoinedTexts(Sequence[str]):
    """The ends of each first text, then each pair as a template of text joins it: joined one at a time, as it is asked.

    A first text of more than `most` characters is joined with none: no pair of it fits.
    """

    def __init__(  # noqa: PLR0917 - each once
        self,
        ends: Mapping[str, tuple[str, str]],
        firsts: Sequence[str | None],
        seconds: Sequence[Input],
        indexes: Sequence[int],
        most: int,
        truncate: int,
    ) -> None:
        self._ends = ends
        self._listed = [end for both in ends.values() for end in both]
        self._firsts, self._seconds, self._indexes = firsts, seconds, indexes
        self._most, self._truncate = most, truncate

    @override
    def __len__(self) -> int:
        return len(self._listed) + len(self._indexes)

    @override
    def __getitem__(self, place: Any) -> Any:
        if place < len(self._listed):
            return self._listed[place]
        index = self._indexes[place - len(self._listed)]
        before, after = ends = self._ends[self._firsts[index] or ""]
        second = str(self._seconds[index])
        room = max(0, self._most - len(before) - len(after))
        if ends is _NO_ENDS:
            return ""
        if len(second) > room and self._truncate != pb.TRUNCATE_NONE:
            second = second[len(second) - room :] if self._truncate == pb.TRUNCATE_START else second[:room]
        return before + second + after
