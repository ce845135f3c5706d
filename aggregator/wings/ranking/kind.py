"""The task of scoring, of which ranking is one use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from typing_extensions import override

from aggregator.errors import InvalidRequest
from aggregator.model_server import ServerDescription
from aggregator.replicas.answers import BadDescription
from aggregator.request.kind import Counted, Kind, Made, Parts, Revision
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Task
from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.ranking import wire
from aggregator.wings.ranking.pairs import PairFrame, checked_frame
from aggregator.wings.ranking.scoring import PairTemplate, scoring_of, template_of
from aggregator.wings.ranking.sequences import Pairs
from protos.modelserver.v1 import modelserver_pb2
from protos.ranking.v1 import ranking_pb2 as pb

_MANY_SCORES = 256
"""Results of 4 us each: a message of its own with a status, and perhaps a document."""


class Ranking(Kind):
    """Scores of pairs of texts; a topic's requests are documents to be ordered by theirs."""

    task: ClassVar[Task] = PairTemplate.task
    name: ClassVar[str] = "rank"
    served: ClassVar[tuple[str, ...]] = ("rank", "classify")
    message: ClassVar[str] = "a RankRequest"
    response: ClassVar[type[pb.RankResponse]] = pb.RankResponse

    def __init__(self) -> None:
        self._frames: WeakKeyDictionary[Tokenizer, dict[bool, PairFrame]] = WeakKeyDictionary()

    @override
    def decode(self, value: bytes, max_inputs: int) -> pb.RankRequest:
        wire.check(value)
        return pb.RankRequest.FromString(value)

    @override
    def decode_json(self, value: bytes, max_inputs: int) -> pb.RankRequest:
        return wire.decode_rank_json(value)

    @override
    def decode_text(self, text: str) -> Any:
        raise InvalidRequest("a text by itself is no query with documents: send a RankRequest in protobuf or JSON")

    @override
    def parts(self, message: wire.ScoresRequest, defaults: Defaults, received_s: float) -> Parts:
        return wire.parts(message)

    @override
    def answer(self, request: Request, reply_id: str, now_s: float) -> wire.ScoresResponse:
        return wire.response(request, reply_id)

    @override
    def inputs_field(self, request: Request) -> str:
        return "documents" if scoring_of(request).ranks else "pairs"

    @override
    def characters(self, request: Request) -> int:
        """First texts of pairs count once a pair."""
        firsts = scoring_of(request).firsts
        return sum(map(len, request.inputs)) + sum(len(first) for first in firsts if first is not None)

    @override
    def text_bytes(self, request: Request) -> int:
        firsts = set(scoring_of(request).firsts)
        return super().text_bytes(request) + sum(getsizeof(first) for first in firsts if first is not None)

    @override
    def result_bytes(self, request: Request, dimensions: int) -> int:
        documents = request.characters // request.vector_count if scoring_of(request).return_documents else 0
        return super().result_bytes(request, dimensions) + documents

    @override
    def is_large(self, request: Request) -> bool:
        return request.vector_count > _MANY_SCORES

    @override
    def details(self, said: modelserver_pb2.DescribeResponse) -> PairTemplate:
        text = said.pair_template.text
        if text and any(text.count(name) != 1 for name in ("{query}", "{document}")):
            raise BadDescription(f"its pair_template {text!r} does not hold {{query}} and {{document}} once each")
        return PairTemplate(text, said.pair_template.token_types)

    @override
    def check_tokenizer(self, description: ServerDescription, tokenizer: Tokenizer) -> None:
        self._frame(description, tokenizer)

    @override
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        return self._pairs(revision, request).texts(indexes)

    @override
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        return self._pairs(revision, request).made(indexes, counted)

    def _pairs(self, revision: Revision, request: Request) -> Pairs:
        return Pairs(revision, self._frame(revision.description, revision.tokenizer), request)

    def _frame(self, description: ServerDescription, tokenizer: Tokenizer) -> PairFrame | None:
        """How a model's tokenizer joins two texts; None where a template of text does.

        Raises ValueError for a tokenizer that joins them otherwise than by special tokens around and between them.
        """
        template = template_of(description)
        if template.text:
            return None
        frames = self._frames.setdefault(tokenizer, {})
        frame = frames.get(template.token_types)
        if frame is None:
            frame = frames[template.token_types] = checked_frame(tokenizer, token_types=template.token_types)
        return frame


RANKING = Ranking()
